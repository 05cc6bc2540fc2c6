"""The cache tree's model, layout and pictures."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET

import pytest
from cache_samples import FakeCache, busy_cache
from view_fixtures import FIXTURES, tree_fixture

from lmnb.widgets import tree_svg
from lmnb.widgets.tree_layout import layout
from lmnb.widgets.tree_model import CHECKPOINT, CacheModel, Tree, step
from lmnb.widgets.tree_source import Translator


def recorded(cache: FakeCache) -> CacheModel:
    translator = Translator(cache.decode)
    model = CacheModel(limit=100_000)
    for event in cache.events:
        model.append(translator.translate(event))
    return model


def random_cache(seed: int, steps: int) -> FakeCache:
    random_ = random.Random(seed)
    cache = FakeCache()
    for _ in range(steps):
        if len(cache.nodes) > 12 and random_.random() < 0.5:
            cache.evict()
        elif random_.random() < 0.01:
            cache.reset()
        else:
            cache.request("".join(random_.choice("ab你") for _ in range(random_.randint(1, 9))), seconds=0.05)
    return cache


def test_the_stored_fixture_is_what_the_model_makes() -> None:
    stored = json.loads((FIXTURES / "tree.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(tree_fixture())) == stored


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_at_any_moment_is_the_replay_up_to_it(seed: int) -> None:
    model = recorded(random_cache(seed, 400))
    assert len(model.events) > 2 * CHECKPOINT
    replay: Tree = {}
    for count in range(len(model.events) + 1):
        if count:
            step(replay, model.events[count - 1])
        if count % 7 == 0 or count % CHECKPOINT in (0, 1, CHECKPOINT - 1):
            assert model.at(count) == replay
    assert model.head == replay


@pytest.mark.parametrize("seed", range(5))
def test_the_model_follows_the_cache_itself(seed: int) -> None:
    cache = random_cache(seed, 200)
    model = recorded(cache)
    assert set(model.head) == set(cache.nodes)
    for id, node in cache.nodes.items():
        mine = model.head[id]
        assert (mine["parent"], mine["num_tokens"], mine["hits"]) == (node["parent"], len(node["ids"]), node["hits"])
        assert mine["text"] == cache.decode(node["ids"])


def test_a_long_history_is_folded_into_the_base_without_changing_the_tree() -> None:
    cache = random_cache(3, 900)
    translator = Translator(cache.decode)
    short, whole = CacheModel(limit=300), CacheModel(limit=100_000)
    for event in cache.events:
        wire = translator.translate(event)
        short.append(wire)
        whole.append(wire)
    assert len(short.events) < 300 + 2 * CHECKPOINT < len(whole.events)
    assert short.head == whole.head
    assert short.seq == whole.seq
    forgotten = short.base_seq + 1
    for count in range(0, len(short.events) + 1, 50):
        assert short.at(count) == whole.at(forgotten + count)


def test_an_event_out_of_order_is_refused() -> None:
    model = recorded(busy_cache())
    with pytest.raises(ValueError, match="after"):
        model.append(model.events[0])


def test_pins_are_the_nodes_own_and_stay_with_the_lower_part_of_a_split() -> None:
    cache = FakeCache()
    cache.request("aaaa1")
    cache.pin(1)
    cache.request("aa2")
    head = recorded(cache).head
    assert {id: node["pinned"] for id, node in head.items()} == {1: True, 2: False, 3: False}
    assert cache.decode(cache.nodes[1]["ids"]) == head[1]["text"] == "aa1"
    cache.pin(1, "unpin")
    assert not any(node["pinned"] for node in recorded(cache).head.values())
    translator = Translator(cache.decode)
    assert [node["pinned"] for node in translator.rebase(cache.snapshot())] == [False] * 3


def test_marks_tell_new_reused_and_evicted_apart() -> None:
    cache = FakeCache()
    cache.request("system: be kind. hello")
    seen = len(cache.events)
    cache.request("system: be kind. bye")
    new = max(id for id in cache.nodes if cache.decode(cache.nodes[id]["ids"]) == "bye")
    upper = cache.nodes[new]["parent"]
    cache.evict(1)
    marks = recorded(cache).marks(since=seen)
    assert (marks.new, marks.hit, set(marks.evicted)) == ({new}, {upper}, {1})
    assert marks.evicted[1]["text"] == "hello"


def test_a_flush_marks_everything_as_evicted() -> None:
    cache = busy_cache()
    nodes = set(cache.nodes)
    cache.reset()
    model = recorded(cache)
    marks = model.marks(since=len(model.events) - 1)
    assert (set(marks.evicted), marks.new, marks.hit, model.head) == (nodes, set(), set(), {})


def test_layout_packs_children_behind_their_parents_without_overlap() -> None:
    model = recorded(random_cache(1, 150))
    boxes = {box.node: box for box in layout(model.head)}
    assert set(boxes) == set(model.head)
    cells: set[tuple[int, int]] = set()
    for box in boxes.values():
        parent = boxes.get(model.head[box.node]["parent"])
        assert box.end - box.start == model.head[box.node]["num_tokens"]
        assert box.start == (parent.end if parent else 0)
        if parent:
            assert box.depth == parent.depth + 1
            assert parent.row <= box.row
            assert box.row + box.rows <= parent.row + parent.rows
        mine = {(row, token) for row in range(box.row, box.row + box.rows) for token in range(box.start, box.end)}
        assert not mine & cells
        cells |= mine


def test_a_split_moves_no_other_branch() -> None:
    cache = FakeCache()
    for text in ("aaaa1", "bbbb2", "cccc3"):
        cache.request(text)
    rows = {box.node: box.row for box in layout(recorded(cache).head)}
    cache.request("aaaa1 more")
    cache.request("cc?")
    after = {box.node: box.row for box in layout(recorded(cache).head)}
    assert (after[1], after[2]) == (rows[1], rows[2])


def test_the_svg_is_well_formed_and_names_states_without_colour() -> None:
    cache = busy_cache()
    model = recorded(cache)
    picture = tree_svg.svg(model.head, model.marks(since=len(model.events) - 6), width=1200)
    root = ET.fromstring(picture)
    groups = [group.get("class") for group in root.iter("{http://www.w3.org/2000/svg}g")]
    assert len(groups) == len(model.head) + groups.count("evicted")
    assert {"new", "hit", "evicted"} <= set(groups)
    text = "".join(root.itertext())
    assert "✕ " in text
    assert "● " in text
    assert "+ " in text


def test_an_empty_cache_says_so() -> None:
    assert "The cache is empty." in tree_svg.svg({})
    assert tree_svg.text({}) == "Cache tree: 0 nodes, 0 tokens"


def test_text_shows_depth_by_indentation() -> None:
    lines = tree_svg.text(recorded(busy_cache()).head).splitlines()
    depths = [len(re.match(r" *", line).group()) // 2 for line in lines[1:]]  # type: ignore[union-attr]
    assert depths[0] == 1
    assert max(depths) >= 3
