"""Plans of a decode step: every key of every request exactly once, shared ones once for all, within the limits."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lmnb.kernels.device_plan import NARROW_ROWS, OPEN_END, WIDE_ROWS
from lmnb.runtime.decode_tree import MIN_SAVED_KEYS, DecodePlanner, share_keys
from lmnb.runtime.radix_cache import RadixCache
from lmnb.runtime.radix_node import RadixNode
from lmnb.runtime.rows import Row


def sequences(prompts: list[list[int]], own: int = 3) -> tuple[RadixCache, list[Any]]:
    """Sequences that have computed their prompt and `own` tokens more, on one tree."""
    cache = RadixCache()
    nodes: list[RadixNode] = []
    slot = 0
    for prompt in prompts:
        slots = np.arange(slot, slot + len(prompt))
        slot += len(prompt)
        nodes.append(cache.insert(np.array(prompt, dtype=np.int32), slots).node)
        cache.lock(nodes[-1])
    found = [
        SimpleNamespace(id=i, row=i + 10, node=node, num_shared=len(prompt), num_computed=len(prompt) + own)
        for i, (prompt, node) in enumerate(zip(prompts, nodes, strict=True))
    ]
    return cache, found


def rows_of(batch: list[Any], count: int = 1) -> list[Row]:
    """A row for each sequence's next tokens."""
    return [Row(s, s.num_computed, s.num_computed + count, s.row, s.num_computed) for s in batch]


def random_prompts(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    prompts: list[list[int]] = [[]]
    for _ in range(rng.randrange(1, 40)):
        base = rng.choice(prompts)
        kept = base[: rng.randrange(len(base) + 1)] if rng.random() < 0.5 else base
        prompts.append(kept + [rng.randrange(9) for _ in range(rng.choice([1, 5, 300, 900]))])
    return prompts[1:]


def covered(items: Any, lens: list[int]) -> list[list[tuple[int, int, int]]]:
    """For each request, (part, start, end) of all its items."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in lens]
    for first, count, _, start, end, part in [*items.narrow.tolist(), *items.wide.tolist()]:
        for request in range(first, first + count):
            found[request].append((part, start, min(end, lens[request])))
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_every_key_is_read_once_by_each_token(seed: int, tree: bool, count: int) -> None:
    _, batch = sequences(random_prompts(seed))
    group = (1, 4, 16)[seed % 3]
    planner = DecodePlanner(8, group, 132, tree=tree)
    rows = rows_of(batch, count)
    items = planner.plan(rows, max_parts=6)
    assert sorted(items.order) == list(range(len(rows)))
    ordered = [rows[i].sequence for i in items.order for _ in range(count)]
    lens = [rows[i].column + number for i in items.order for number in range(1, count + 1)]
    for sequence, parts, count, length in zip(ordered, covered(items, lens), items.num_parts, lens, strict=True):
        parts.sort()
        assert [part for part, _, _ in parts] == list(range(count)), sequence.id
        assert count <= 6
        assert [start for _, start, _ in parts] == [0, *[end for _, _, end in parts[:-1]]]
        assert parts[-1][2] == length
    for items_of, most in ((items.narrow, NARROW_ROWS), (items.wide, WIDE_ROWS)):
        assert all(count * group <= most for count in items_of[:, 1])
    # Whoever shares an item has the same slots there.
    for first, count, row, start, end, _ in [*items.narrow.tolist(), *items.wide.tolist()]:
        assert row == ordered[first].row
        slots = [cache_slots(sequence)[start:end].tolist() for sequence in ordered[first : first + count]]
        assert count == 1 or all(each == slots[0] and len(each) == end - start for each in slots)
    if not tree:
        assert len(items.narrow) <= len(lens) + planner.max_splits


def cache_slots(sequence: Any) -> np.ndarray:
    node, parts = sequence.node, []
    while node.parent is not None:
        parts.append(node.slots)
        node = node.parent
    return np.concatenate(parts[::-1]) if parts else np.empty(0)


def test_a_shared_prefix_is_one_segment_and_a_short_one_is_not_worth_it() -> None:
    stem = [1] * 700
    _, batch = sequences([[*stem, i] for i in range(2, 9)])
    _, segments, tails = share_keys(rows_of(batch))
    assert [tuple(segment) for segment in segments] == [(0, 7, 0, 700)]
    assert tails.tolist() == [700] * 7
    short = [1] * (MIN_SAVED_KEYS // 7)
    _, batch = sequences([[*short, i] for i in range(2, 9)])
    assert share_keys(rows_of(batch))[1] == []


def test_a_plan_is_kept_while_the_same_requests_grow() -> None:
    _, batch = sequences([[1, 2, 3], [4, 5]])
    planner = DecodePlanner(2, 2, 4)
    first = planner.plan(rows_of(batch), 12)
    for sequence in batch:
        sequence.num_computed += 1
    assert planner.plan(rows_of(batch), 12) is first
    assert set(first.narrow[:, 4]) == {OPEN_END}
    assert planner.plan(rows_of(batch[:1]), 12) is not first
    grown = planner.plan(rows_of(batch), 12)
    batch[0].num_computed -= 1  # its last tokens were replaced: a chunk of the plan may begin behind its end
    assert planner.plan(rows_of(batch), 12) is not grown
