"""The cache view: live deltas, history, holes in it, and an engine that goes away."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import Any

import pytest
from cache_samples import FakeCache, busy_cache
from patience import until
from view_front_end import FrontEnd

from lmnb.errors import EngineClosedError
from lmnb.widgets import CacheView, tree_svg
from lmnb.widgets.output import WIDGET_MIME
from lmnb.widgets.tree_model import CacheModel


def state_of(view: CacheView) -> CacheModel:
    state = json.loads(view.snapshot())["model"]
    model = CacheModel(state["base"], state["base_seq"])
    for event in state["events"]:
        model.append(event)
    return model


def follow(front_end: FrontEnd, snapshot: str) -> CacheModel:
    """What a page knows that began with `snapshot` and got every post since."""
    start: dict[str, Any] = json.loads(snapshot)
    model = CacheModel(start["model"]["base"], start["model"]["base_seq"])
    for event in start["model"]["events"]:
        model.append(event)
    for post in front_end.posts:
        if post["type"] == "events" and post["seq"] > start["seq"]:
            for event in post["events"]:
                model.append(event)
    return model


def wait_for_posts(front_end: FrontEnd, last_seq: int) -> None:
    until(lambda: any(event["seq"] == last_seq for event in front_end.events()))


def test_the_widget_follows_the_cache_in_few_messages(front_end: FrontEnd) -> None:
    cache = busy_cache()
    view = CacheView(cache, "widget")
    snapshot = view.snapshot()
    view.display()
    began = time.monotonic()
    for number in range(200):
        cache.request(f"request {number % 7} of {number}", "cell 9", seconds=0.01)
        time.sleep(0.001)
    cache.evict()
    wait_for_posts(front_end, len(cache.events) - 1)
    assert len(front_end.posts) <= (time.monotonic() - began) * 20 + 2
    model = follow(front_end, snapshot)
    assert set(model.head) == set(cache.nodes)
    assert [event["seq"] for event in model.events] == list(range(len(cache.events)))
    assert front_end.posts[-1]["pool"]["pool_tokens"] == cache.pool_tokens
    view.close()
    assert cache.callbacks == []


def test_the_display_carries_all_forms(front_end: FrontEnd) -> None:
    view = CacheView(busy_cache(), "widget")
    view.display()
    (_, picture), (_, live) = front_end.displays
    assert set(picture) == {"text/html", "text/plain"}
    assert "<svg" in picture["text/html"]
    assert set(live) == {WIDGET_MIME, "text/html"}
    view.close()


def test_a_picture_follows_its_live_view(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmnb.widgets.output.PICTURE_INTERVAL", 0.05)
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()
    cache.request("Something entirely new", "cell 9")
    until(lambda: front_end.updates)
    (updated, picture), ((display, _), _) = front_end.updates[0], front_end.displays
    assert updated == display
    assert "Something entirely new" in picture["text/html"]
    view.close()
    cache.request("Nobody follows", "cell 10")
    time.sleep(0.2)
    assert "Nobody follows" not in front_end.updates[-1][1]["text/html"]


def test_html_and_text_are_pictures_that_follow_nothing(
    front_end: FrontEnd, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = busy_cache()
    CacheView(cache, "html").display()
    CacheView(cache, "text").display()
    CacheView(cache, "off").display()
    ((_, bundle),) = front_end.displays
    assert WIDGET_MIME not in bundle
    assert capsys.readouterr().out.startswith("Cache tree: ")
    assert cache.callbacks == []


def test_all_recorded_events_are_there_to_scrub_through() -> None:
    cache = busy_cache()
    model = state_of(CacheView(cache, "off"))
    assert model.base_seq == -1
    assert len(model.events) == len(cache.events)
    assert set(model.head) == set(cache.nodes)


def test_a_cache_that_forgot_its_first_events_starts_from_a_snapshot(front_end: FrontEnd) -> None:
    cache = busy_cache()
    cache.keep = 4
    view = CacheView(cache, "widget")
    snapshot = view.snapshot()
    assert json.loads(snapshot)["model"]["base_seq"] == len(cache.events) - 1
    view.display()
    cache.request("You are kind. What now?")
    wait_for_posts(front_end, len(cache.events) - 1)
    model = follow(front_end, snapshot)
    assert {id: node["text"] for id, node in model.head.items()} == {
        id: cache.decode(node["ids"]) for id, node in cache.nodes.items()
    }
    view.close()


def test_a_hole_in_the_events_leads_to_a_fresh_snapshot(front_end: FrontEnd) -> None:
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()
    callbacks, cache.callbacks = cache.callbacks, []
    cache.request("this one is never announced")
    cache.callbacks = callbacks
    cache.request("You are kind. And this one is.")
    until(lambda: any(post["type"] == "snapshot" for post in front_end.posts))
    answer = next(post for post in front_end.posts if post["type"] == "snapshot")
    assert set(follow(front_end, answer["snapshot"]).head) == set(cache.nodes)
    view.close()


def test_nobody_looking_means_no_subscription_and_looking_again_catches_up(front_end: FrontEnd) -> None:
    cache = busy_cache()
    view = CacheView(cache, "widget")
    snapshot = view.snapshot()
    view.display()
    front_end.widget._on_message(None, {"type": "views", "count": 0}, [])
    assert cache.callbacks == []
    cache.request("while nobody looks")
    front_end.widget._on_message(None, {"type": "views", "count": 1}, [])
    wait_for_posts(front_end, len(cache.events) - 1)
    assert set(follow(front_end, snapshot).head) == set(cache.nodes)
    view.close()


def test_a_page_that_missed_messages_before_it_was_there_gets_a_snapshot(front_end: FrontEnd) -> None:
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()
    cache.request("before any page was there")
    wait_for_posts(front_end, len(cache.events) - 1)
    front_end.widget._on_message(None, {"type": "views", "count": 1, "seq": 0}, [])
    found = until(lambda: [post for post in front_end.posts if post["type"] == "snapshot"])
    seq = json.loads(found[0]["snapshot"])["seq"]
    front_end.widget._on_message(None, {"type": "views", "count": 2, "seq": seq}, [])
    time.sleep(0.2)
    assert len([post for post in front_end.posts if post["type"] == "snapshot"]) == 1
    view.close()


def test_marimo_shows_the_widget_itself(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = busy_cache()
    view = CacheView(cache, "text")
    assert view._display_() is view._display_() is front_end.widget
    cache.request("for a page without any cell of IPython's")
    wait_for_posts(front_end, len(cache.events) - 1)
    assert front_end.displays == []
    view.close()
    monkeypatch.setattr("lmnb.widgets.tree_view.has_anywidget", lambda: False)
    assert str(CacheView(cache, "text")._display_()).startswith("Cache tree: ")


def test_a_view_as_a_cells_value_is_displayed(front_end: FrontEnd) -> None:
    CacheView(busy_cache(), "html")._ipython_display_()
    assert len(front_end.displays) == 1


def test_the_picture_outlives_the_engine(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()

    def closed(*args: object) -> Any:
        raise EngineClosedError("the engine was shut down")

    for name in ("status", "snapshot", "subscribe", "cache_events"):
        monkeypatch.setattr(cache, name, closed)
    assert set(state_of(view).head) == set(cache.nodes)
    assert "<svg" in view.to_html()
    front_end.widget._on_message(None, {"type": "views", "count": 0}, [])
    front_end.widget._on_message(None, {"type": "views", "count": 1}, [])
    view.close()


def test_since_marks_what_came_after_an_earlier_view() -> None:
    cache = FakeCache()
    cache.request("one")
    seen = CacheView(cache, "off").seq
    cache.request("two", seconds=0.0)
    view = CacheView(cache, "off", since=seen)
    assert view.to_svg().count('class="new"') == 1
    assert CacheView(cache, "off").to_svg().count('class="new"') == 2


def test_an_unloaded_model_is_said_and_its_last_tree_stays(front_end: FrontEnd) -> None:
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()

    def closed(*_: object) -> Any:
        raise EngineClosedError("the engine was shut down")

    cache.status = cache.snapshot = cache.cache_events = cache.subscribe = closed  # type: ignore[method-assign]
    view.say_unloaded()
    front_end.widget._on_message(None, {"type": "resync"}, [])
    found = until(lambda: [post for post in front_end.posts if post["type"] == "snapshot"])
    state = json.loads(found[-1]["snapshot"])
    assert state["pool"]["closed"] == 1
    assert state["model"]["events"]
    assert "the model was unloaded" in view.to_html()
    view.close()


def test_what_is_asked_for_in_the_view_is_done_and_told(front_end: FrontEnd) -> None:
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()

    def ask(act: object, **more: object) -> str:
        front_end.widget._on_message(None, {"type": "act", "act": act, **more}, [])
        return str([post for post in front_end.posts if post["type"] == "notice"][-1]["text"])

    leaf = max(cache.nodes)
    assert ask("pin", node=leaf).startswith("Pinned")
    assert ask("unpin", node=leaf) == "Unpinned."
    assert ask("evict", node=leaf) == "Evicted 11 tokens."
    assert cache.asked == [("pin", leaf), ("unpin", leaf), ("evict", leaf)]
    assert ask("pin", node=99) == "Not done: the cache has no node 99 any more."
    for strange in ({"act": "drop", "node": 1}, {"act": "pin"}, {"act": "pin", "node": "1"}, {"act": None}):
        assert ask(**strange).startswith("Not done: a view can pin, unpin, evict and flush")
    cache.held = [(leaf, "cell 5")]
    assert ask("flush") == "Not flushed: requests are running."
    cache.held = []
    assert ask("flush") == "What was not pinned is forgotten."
    wait_for_posts(front_end, len(cache.events) - 1)
    kinds = [event["kind"] for event in front_end.events()]
    assert kinds[-4:] == ["pin", "unpin", "evict", "reset"]
    view.close()


def test_a_view_of_an_engine_that_is_gone_says_so_when_asked(front_end: FrontEnd) -> None:
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()

    def closed() -> Any:
        raise EngineClosedError("the engine was shut down")

    cache.flush_cache = closed  # type: ignore[method-assign]
    front_end.widget._on_message(None, {"type": "act", "act": "flush"}, [])
    assert front_end.posts[-1] == {"type": "notice", "text": "Not done: the engine was shut down."}
    view.close()


def test_the_gauge_is_looked_at_again_as_long_as_something_runs(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmnb.widgets.tree_view.GAUGE_INTERVAL", 0.01)
    cache = busy_cache()
    idle = cache.status()
    running = dataclasses.replace(idle, running=2)
    cache.status = lambda: running  # type: ignore[method-assign]
    cache.held = [(1, "cell 7"), (1, None), (1, "cell 7"), (2, "cell 8")]
    view = CacheView(cache, "widget")
    view.display()
    cache.request("You are kind. And busy.")
    wait_for_posts(front_end, len(cache.events) - 1)
    assert front_end.posts[-1]["pool"]["held"] == [[1, 3, "cell 7", ""], [2, 1, "cell 8"]]
    cache.status, cache.held = (lambda: idle), []  # type: ignore[method-assign]
    until(lambda: not front_end.posts[-1]["pool"]["running"])
    assert front_end.posts[-1]["events"] == []
    posts = [post["seq"] for post in front_end.posts]
    assert posts == list(range(posts[0], posts[0] + len(posts)))
    time.sleep(0.1)
    assert len(front_end.posts) == len(posts)  # and no longer than that
    view.close()


def test_pictures_tell_what_is_pinned() -> None:
    view = CacheView(busy_cache(), "off")
    for picture in (view.to_svg(), view.to_text(), view.to_dot()):
        assert "⚑" in picture
    assert "⚑" not in CacheView(FakeCache(), "off").to_text()


def test_the_picture_survives_without_its_style_sheet() -> None:
    bare = re.sub(r"<style>.*?</style>", "", CacheView(busy_cache(), "html").to_svg(), flags=re.DOTALL)
    assert all("fill=" in rect and "stroke=" in rect for rect in re.findall("<rect[^>]*>", bare))
    assert all("font-size=" in label for label in re.findall("<text[^>]*>", bare))


def test_labels_shorten_chat_markers() -> None:
    text = "<|im_start|>user\nHi <b>you</b><|im_end|>\n<|image|></s>"
    assert tree_svg.label_text(text) == "▸user Hi <b>you</b>◂ ◆◂"


class Cells:
    """A front end that names its cells: what runs now, and how often it has run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._number = 0
        self._cell = ""
        monkeypatch.setattr("lmnb.widgets.superseded.current_cell", lambda: self._cell)
        monkeypatch.setattr("lmnb.widgets.superseded.current_request", lambda: f"request {self._number}")

    def run(self, cell: str, *views: CacheView) -> None:
        self._number += 1
        self._cell = cell
        for view in views:
            view.display()


def is_live(view: CacheView, cache: FakeCache, front_end: FrontEnd) -> bool:
    """Whether what the view shows last follows the cache."""
    model_id = front_end.displays[-1][1][WIDGET_MIME]["model_id"]
    if view._widget is None or view._widget.model_id != model_id or view._widget.comm is None:
        return False
    cache.request(f"something new {len(cache.events)}", "cell 9")
    wait_for_posts(front_end, len(cache.events) - 1)
    return True


def test_a_view_displayed_in_two_cells_lives_until_both_have_run_again(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, cache = Cells(monkeypatch), busy_cache()
    first, second = CacheView(cache, "widget"), CacheView(busy_cache(), "widget")
    cells.run("a", first)
    cells.run("b", first)
    cells.run("a", second)
    assert is_live(first, cache, front_end) is False  # the last display is the other view's
    assert first._widget.comm is not None
    cells.run("b", second)
    assert first._widget is None
    assert cache.callbacks == []


def test_a_view_displayed_again_beside_another_in_a_cell_that_runs_again_is_live(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, cache = Cells(monkeypatch), busy_cache()
    kept = CacheView(cache, "widget")
    for _ in range(3):
        cells.run("a", CacheView(busy_cache(), "widget"), kept)
        assert is_live(kept, cache, front_end)
        assert len(cache.callbacks) == 1
    cells.run("a", CacheView(busy_cache(), "widget"))
    assert cache.callbacks == []
    kept.close()


def test_each_picture_has_a_hatch_of_its_own_and_reads_well_without_drawing_and_style() -> None:
    pictures = []
    for number in range(2):
        cache = busy_cache()
        cache.request(f"{number} more", "cell 9")
        cache.evict()
        pictures.append(CacheView(cache, "html")._picture())
    (first,), (second,) = (set(re.findall(r'id="([^"]*)"', picture)) for picture in pictures)
    assert first != second
    assert f'fill="url(#{first})"' in pictures[0]
    assert "fill:" not in pictures[0].partition("<svg")[2].replace("fill:var(", "")  # nothing overrides it
    # Sites that take the drawing away leave its words, in a box of no height; the list below is outside of it.
    bare = re.sub(r"<style>.*?</style>|</?(?:svg|g|title|text|tspan)\b[^>]*>", "", pictures[0], flags=re.DOTALL)
    assert re.search(r'<div class="lmnb-drawing" style="height:0;max-height:480px;overflow:hidden">', bare)
    bare = bare.replace('<pre style="max-height:480px;overflow:auto">', "<pre>")  # which scrolls
    assert re.search(r"</div><details><summary>[^<]*</summary></details><pre>Cache tree: .*14 tokens", bare, re.DOTALL)
    assert "<pre style=" in pictures[0]
    assert re.search(r"\b(?<![,.])1 (tokens|hits)", pictures[0]) is None
