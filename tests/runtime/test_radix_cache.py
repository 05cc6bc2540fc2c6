"""The radix cache against the naive one, its events against its snapshots, and the known unit cases."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lmnb.runtime.events import CacheEvent
from lmnb.runtime.naive_cache import NaiveCache, NaiveNode
from lmnb.runtime.radix_cache import RadixCache
from lmnb.runtime.radix_node import RadixNode


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def slots(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int64)


def test_insert_then_match_exact_prefix_and_nothing() -> None:
    cache = RadixCache()
    assert cache.insert(tokens(1, 2, 3), slots(10, 3)).num_existing == 0
    assert (cache.num_tokens, cache.num_evictable) == (3, 3)
    assert cache.peek(tokens(1, 2, 3)) == 3
    assert cache.peek(tokens(1, 2, 3, 4)) == 3
    assert cache.peek(tokens(1, 2)) == 2
    assert cache.peek(tokens(2, 3)) == 0
    assert cache.peek(tokens()) == 0
    match = cache.acquire(tokens(1, 2, 9))
    assert match.slots.tolist() == [10, 11]
    cache.check_integrity()


def test_lock_moves_tokens_out_of_reach_and_back() -> None:
    cache = RadixCache()
    node = cache.insert(tokens(1, 2, 3), slots(0, 3)).node
    cache.lock(node)
    assert (cache.num_tokens, cache.num_evictable) == (3, 0)
    assert len(cache.evict(3)) == 0
    cache.release(node)
    assert cache.num_evictable == 3
    assert sorted(cache.evict(1).tolist()) == [0, 1, 2]
    assert cache.num_tokens == 0
    with pytest.raises(AssertionError, match="released more often"):
        cache.release(node)


def test_split_keeps_locks_of_both_parts() -> None:
    cache = RadixCache()
    node = cache.insert(tokens(1, 2, 3, 4), slots(0, 4)).node
    cache.lock(node)
    cache.insert(tokens(1, 2, 7), np.array([0, 1, 9]))
    assert cache.num_nodes == 3
    assert cache.num_evictable == 1
    cache.check_integrity()
    cache.release(node)
    assert cache.num_evictable == 5
    cache.check_integrity()


def test_insert_tells_what_was_there() -> None:
    cache = RadixCache()
    cache.insert(tokens(1, 2, 3), slots(0, 3))
    again = cache.insert(tokens(1, 2, 3, 4, 5), slots(20, 5), start=1)
    assert again.num_existing == 3
    assert again.existing_slots.tolist() == [1, 2]
    assert cache.acquire(tokens(1, 2, 3, 4, 5)).slots.tolist() == [0, 1, 2, 23, 24]


def test_only_the_makers_own_leaf_grows_in_place() -> None:
    cache = RadixCache()
    mine = cache.insert(tokens(1, 2), slots(0, 2)).node
    assert cache.insert(tokens(1, 2, 3), slots(0, 3), tail=mine).node is mine
    assert cache.num_nodes == 1
    other = cache.insert(tokens(1, 2, 3, 4), slots(0, 4)).node
    assert other is not mine
    assert other.parent is mine
    assert cache.insert(tokens(1, 2, 3, 5), slots(0, 4), tail=mine).node is not mine  # it has a child by now
    cache.check_integrity()


def test_least_recently_used_leaf_goes_first_and_parents_follow() -> None:
    cache = RadixCache()
    cache.insert(tokens(1, 2, 3), slots(0, 3))
    cache.insert(tokens(1, 2, 4), np.array([0, 1, 5]))
    cache.insert(tokens(9, 9), slots(6, 2))
    cache.release(cache.acquire(tokens(1, 2, 3)).node)
    assert cache.evict(1).tolist() == [5]
    assert sorted(cache.evict(1).tolist()) == [6, 7]
    assert cache.evict(1).tolist() == [2]
    assert sorted(cache.evict(1).tolist()) == [0, 1]
    assert len(cache.evict(1)) == 0
    cache.check_integrity()


def test_reset_refuses_while_locked_and_returns_everything() -> None:
    cache = RadixCache()
    node = cache.insert(tokens(1, 2, 3), slots(0, 3)).node
    cache.lock(node)
    with pytest.raises(AssertionError):
        cache.reset()
    cache.release(node)
    assert sorted(cache.reset().tolist()) == [0, 1, 2]
    assert cache.num_tokens == 0
    assert cache.peek(tokens(1)) == 0


def test_a_pin_keeps_the_path_whatever_is_evicted_flushed_or_split() -> None:
    cache = RadixCache()
    node = cache.insert(tokens(1, 2, 3, 4), slots(0, 4)).node
    cache.insert(tokens(9), slots(9, 1))
    cache.pin(node)
    cache.pin(node)
    assert (cache.num_pinned, cache.num_evictable) == (4, 1)
    cache.insert(tokens(1, 2, 7), np.array([0, 1, 5]))  # cuts the pinned node
    assert (cache.num_pinned, cache.num_evictable) == (4, 2)
    assert [n.pinned for n in sorted(cache.nodes(), key=lambda n: n.end)] == [False, False, False, True]
    assert sorted(cache.evict(99).tolist()) == [5, 9]
    cache.check_integrity()
    assert len(cache.reset()) == 0
    assert cache.peek(tokens(1, 2, 3, 4)) == 4
    cache.unpin(node)
    cache.unpin(node)
    assert (cache.num_pinned, cache.num_evictable) == (0, 4)
    assert sorted(cache.reset().tolist()) == [0, 1, 2, 3]
    cache.check_integrity()


def test_a_flush_beside_pins_tells_of_each_node_that_goes() -> None:
    cache = RadixCache()
    cache.pin(cache.insert(tokens(1, 2), slots(0, 2)).node)
    cache.insert(tokens(1, 2, 3), slots(0, 3))
    cache.insert(tokens(8), slots(8, 1))
    seen = len(cache.events)
    assert sorted(cache.reset().tolist()) == [2, 8]
    assert [(event.kind, event.reason) for event in list(cache.events)[seen:]] == [("evict", "flush")] * 2


def test_a_pinned_leaf_grows_no_more_so_the_pin_holds_what_was_pinned() -> None:
    cache = RadixCache()
    mine = cache.insert(tokens(1, 2), slots(0, 2)).node
    cache.pin(mine)
    grown = cache.insert(tokens(1, 2, 3), slots(0, 3), tail=mine).node
    assert grown.parent is mine
    assert cache.num_pinned == 2
    cache.check_integrity()


def test_discard_takes_a_whole_branch_leaves_first_and_nothing_locked() -> None:
    cache = RadixCache()
    cache.insert(tokens(1, 2, 3), slots(0, 3))
    cache.insert(tokens(1, 2, 4), np.array([0, 1, 5]))
    cache.insert(tokens(7), slots(7, 1))
    upper = next(node for node in cache.nodes() if node.children)
    leaf = next(iter(upper.children.values()))
    cache.lock(leaf)
    with pytest.raises(AssertionError, match="locked node"):
        cache.discard(upper)
    cache.release(leaf)
    seen = len(cache.events)
    assert sorted(cache.discard(upper).tolist()) == [0, 1, 2, 5]
    told = list(cache.events)[seen:]
    assert [event.reason for event in told] == ["asked"] * 3
    assert told[-1].node == upper.id
    assert cache.num_tokens == cache.num_evictable == 1
    cache.check_integrity()


def test_common_length_is_the_deepest_shared_node() -> None:
    cache = RadixCache()
    cache.insert(tokens(1, 2, 3, 4), slots(0, 4))
    cache.insert(tokens(1, 2, 5), np.array([0, 1, 6]))
    cache.insert(tokens(8), slots(9, 1))
    a, b, c, d = (cache.acquire(tokens(*ids)).node for ids in [(1, 2, 3, 4), (1, 2, 5), (1, 2), (8,)])
    assert cache.common_length([a]) == 4
    assert cache.common_length([a, b]) == 2
    assert cache.common_length([a, c]) == 2
    assert cache.common_length([a, b, d]) == 0
    assert cache.common_length([cache.root, a]) == 0


def replay(events: list[CacheEvent]) -> dict[int, tuple[int, tuple[int, ...]]]:
    """The tree that the events tell of: node -> (parent, tokens)."""
    tree: dict[int, tuple[int, tuple[int, ...]]] = {}
    for event in events:
        if event.kind == "insert":
            tree[event.node] = (event.parent, event.token_ids)
        elif event.kind == "extend":
            tree[event.node] = (event.parent, tree[event.node][1] + event.token_ids)
        elif event.kind == "split":
            parent, ids = tree[event.child]
            tree[event.node] = (parent, ids[: event.num_tokens])
            tree[event.child] = (event.node, ids[event.num_tokens :])
        elif event.kind == "evict":
            del tree[event.node]
        elif event.kind == "reset":
            tree.clear()
    return tree


def pins_told(events: list[CacheEvent]) -> set[int]:
    """The pinned nodes that the events tell of."""
    pins: set[int] = set()
    for event in events:
        if event.kind == "pin":
            pins.add(event.node)
        elif event.kind == "unpin":
            pins.remove(event.node)
    return pins


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_agree_with_the_naive_cache(seed: int) -> None:
    rng = random.Random(seed)
    radix, naive = RadixCache(), NaiveCache()
    free = list(range(4000))
    held: list[tuple[RadixNode, NaiveNode]] = []
    pinned: list[tuple[RadixNode, NaiveNode]] = []

    def sequence() -> np.ndarray:
        # few symbols and a shared stem: hits, splits and extensions all happen
        stem = [1, 2, 3, 4][: rng.randint(0, 4)]
        return tokens(*stem, *(rng.randint(1, 3) for _ in range(rng.randint(0, 12))))

    for _ in range(400):
        action = rng.random()
        ids = sequence()
        if action < 0.35 and len(ids):
            fresh = np.array([free.pop() for _ in ids], dtype=np.int64)
            mine, theirs = radix.insert(ids, fresh), naive.insert(ids, fresh)
            assert mine.num_existing == theirs.num_existing
            assert mine.existing_slots.tolist() == theirs.existing_slots.tolist()
            free.extend(fresh[: mine.num_existing].tolist())
        elif action < 0.6:
            mine_match, their_match = radix.acquire(ids), naive.acquire(ids)
            assert mine_match.slots.tolist() == their_match.slots.tolist()
            held.append((mine_match.node, their_match.node))
        elif action < 0.75 and held:
            mine_node, their_node = held.pop(rng.randrange(len(held)))
            radix.release(mine_node)
            naive.release(their_node)
        elif action < 0.85:
            wanted = rng.randint(1, 12)
            before = radix.num_evictable
            gone = radix.evict(wanted)
            assert len(gone) >= min(wanted, before)
            naive.forget(gone)
            free.extend(gone.tolist())
        elif action < 0.86 and not held:
            gone = radix.reset()
            assert sorted(gone.tolist()) == sorted(naive.reset().tolist())
            free.extend(gone.tolist())
        elif action < 0.89 and len(pinned) < 4:
            mine_match, their_match = radix.acquire(ids), naive.acquire(ids)
            radix.release(mine_match.node)
            naive.release(their_match.node)
            if len(mine_match.slots):
                radix.pin(mine_match.node)
                naive.pin(their_match.node)
                pinned.append((mine_match.node, their_match.node))
        elif action < 0.92 and pinned:
            mine_node, their_node = pinned.pop(rng.randrange(len(pinned)))
            radix.unpin(mine_node)
            naive.unpin(their_node)
        elif action < 0.95:
            mine_match, their_match = radix.acquire(ids), naive.acquire(ids)
            radix.release(mine_match.node)
            naive.release(their_match.node)
            if len(mine_match.slots) and mine_match.node.locks == 0:
                first = their_match.node.path()[-len(mine_match.node.tokens)]
                gone = radix.discard(mine_match.node)
                assert sorted(gone.tolist()) == sorted(naive.discard(first).tolist())
                free.extend(gone.tolist())
        else:
            assert radix.peek(ids) == naive.peek(ids)
        assert radix.num_tokens == naive.num_tokens
        assert radix.num_evictable == naive.num_evictable
        assert radix.num_pinned == naive.num_pinned
        assert sorted(radix.check_integrity().tolist()) == sorted(naive.check_integrity().tolist())
    snapshot = radix.snapshot(pool_tokens=4000, free_tokens=len(free))
    assert {n.node: (n.parent, n.token_ids) for n in snapshot.nodes} == replay(list(radix.events))
    assert {n.node for n in snapshot.nodes if n.pinned} == pins_told(list(radix.events))
    assert snapshot.seq == radix.events.next_seq - 1
    assert [event.seq for event in radix.events] == list(range(len(radix.events)))


def test_eviction_stays_in_order_over_thousands_of_touches() -> None:
    """The heap of leaves is compacted while it is in use; order must survive that."""
    cache = RadixCache()
    for i in range(50):
        cache.insert(tokens(i, 1000), slots(2 * i, 2))
    order = list(range(50))
    rng = random.Random(0)
    for _ in range(5000):
        i = rng.randrange(50)
        cache.release(cache.acquire(tokens(i, 1000)).node)
        order.remove(i)
        order.append(i)
    cache.check_integrity()
    assert [int(cache.evict(1)[0]) // 2 for _ in range(50)] == order
