"""The radix cache: a compressed prefix tree over token ids whose nodes own KV slots.

Source: RadixAttention, Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs",
arXiv 2312.07104. It owns slots and reports every change as a `CacheEvent`; it never touches KV memory.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from lmnb.runtime.event_log import EventLog
from lmnb.runtime.events import CacheEventKind, CacheSnapshot, EvictReason, NodeSnapshot
from lmnb.runtime.kv_pool import Slots
from lmnb.runtime.prefix_cache import Insertion, Match, PrefixCache, Tokens, common_prefix
from lmnb.runtime.radix_node import RadixNode
from lmnb.runtime.seam_keys import SeamKeys

_NO_TOKENS = np.empty(0, dtype=np.int32)
_NO_SLOTS = np.empty(0, dtype=np.int64)


class RadixCache(PrefixCache[RadixNode]):
    """Used by one thread. Node ids are never reused within one cache; the root is 0."""

    def __init__(self) -> None:
        self.root = RadixNode(0, None, _NO_TOKENS, _NO_SLOTS, None)
        self.seams = SeamKeys()
        self.version = 0  # grows whenever what `peek` says may have changed
        self.events = EventLog()
        self._nodes = {0: self.root}
        self._num_tokens = 0
        self._num_evictable = 0
        self._num_pinned = 0
        self._next_id = 1
        self._tick = 0
        # Unlocked leaves by last use. Entries go stale instead of being removed; `_pop_oldest` skips those.
        self._heap: list[tuple[int, int]] = []

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def num_evictable(self) -> int:
        return self._num_evictable

    @property
    def num_pinned(self) -> int:
        return self._num_pinned

    @property
    def num_nodes(self) -> int:
        return len(self._nodes) - 1

    def peek(self, tokens: Tokens) -> int:
        return self._follow(tokens)[1]

    def deepest(self, tokens: Tokens) -> RadixNode | None:
        """The last node that shares tokens with this prefix, perhaps not all of its own. Changes nothing."""
        node = self._follow(tokens)[0]
        return None if node is self.root else node

    def acquire(self, tokens: Tokens) -> Match[RadixNode]:
        node, slots = self._walk(tokens)
        self.lock(node)
        return Match(node, np.concatenate(slots) if slots else _NO_SLOTS)

    def record_hit(self, node: RadixNode, num_tokens: int, owner: object = None) -> None:
        """Note that a request uses `num_tokens` tokens of the path to `node`, which it holds."""
        if num_tokens > 0:
            node.hits += 1
            self._record("hit", node, num_tokens=num_tokens, owner=owner)

    def insert(
        self, tokens: Tokens, slots: Slots, *, start: int = 0, tail: RadixNode | None = None, owner: object = None
    ) -> Insertion[RadixNode]:
        node, found = self._walk(tokens)
        num_existing = node.end
        existing = np.concatenate(found)[start:] if num_existing > start else _NO_SLOTS
        if num_existing < len(tokens):
            rest, rest_slots = tokens[num_existing:].copy(), slots[num_existing:].copy()
            if node is tail and not node.children and not node.pinned:
                self._extend(node, rest, rest_slots, owner)
            else:
                node = self._add(node, rest, rest_slots, owner)
        return Insertion(node, num_existing, existing)

    def lock(self, node: RadixNode) -> None:
        for ancestor in node.path():
            if ancestor.locks == 0:
                self._num_evictable -= len(ancestor.tokens)
            ancestor.locks += 1

    def release(self, node: RadixNode) -> None:
        for ancestor in node.path():
            assert ancestor.locks > 0, "a node was released more often than it was locked"
            ancestor.locks -= 1
            if ancestor.locks == 0:
                self._num_evictable += len(ancestor.tokens)
                self._offer(ancestor)

    def pin(self, node: RadixNode) -> None:
        if node.pinned:
            return
        node.pinned = True
        for ancestor in node.path():
            self._num_pinned += len(ancestor.tokens) if ancestor.pins == 0 else 0
            ancestor.pins += 1
        self.lock(node)
        self._record("pin", node, num_tokens=node.end)

    def unpin(self, node: RadixNode) -> None:
        if not node.pinned:
            return
        node.pinned = False
        for ancestor in node.path():
            ancestor.pins -= 1
            self._num_pinned -= len(ancestor.tokens) if ancestor.pins == 0 else 0
        self.release(node)
        self._record("unpin", node, num_tokens=node.end)

    def evict(self, num_tokens: int, *, beneficiary: object = None) -> Slots:
        return self._evict(num_tokens, "room", beneficiary)

    def discard(self, node: RadixNode) -> Slots:
        assert node.locks == 0, "a locked node was discarded"
        doomed = [node]
        for each in doomed:  # grows while it is read
            doomed.extend(each.children.values())
        return np.concatenate([self._remove(each, "asked") for each in reversed(doomed)])

    def reset(self) -> Slots:
        held = self._num_tokens - self._num_pinned
        assert self._num_evictable == held, "the cache was reset while a request held a part of it"
        if self._num_pinned:
            return self._evict(self._num_evictable, "flush", None)
        slots = self._all_slots()
        self.root.children.clear()
        self._nodes = {0: self.root}
        self._heap.clear()
        self.seams.reset()
        self._num_tokens = self._num_evictable = 0
        self.version += 1
        self._record("reset", self.root)
        return slots

    def find(self, id: int) -> RadixNode | None:
        """The node of that id, if there is one; never the root."""
        return self._nodes.get(id) if id else None

    def pinned(self) -> list[RadixNode]:
        """The pinned nodes, by id."""
        return sorted((node for node in self._nodes.values() if node.pinned), key=lambda node: node.id)

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def common_length(self, nodes: list[RadixNode]) -> int:
        """Tokens from the root to the deepest node that lies on the path of every one of `nodes`."""
        common = nodes[0]
        for node in nodes[1:]:
            while common is not node:
                if common.end >= node.end and common.parent is not None:
                    common = common.parent
                elif node.parent is not None:
                    node = node.parent
                else:
                    return 0
        return common.end

    def snapshot(self, *, pool_tokens: int, free_tokens: int) -> CacheSnapshot:
        nodes = [
            NodeSnapshot(
                node=node.id,
                parent=node.parent.id if node.parent else 0,
                token_ids=self.seams.tokens(node.tokens),
                locks=node.locks - node.pins,
                last_access=node.last_access,
                hits=node.hits,
                owner=node.owner,
                pinned=node.pinned,
            )
            for node in self.nodes()
        ]
        return CacheSnapshot(
            seq=self.events.next_seq - 1,
            nodes=tuple(nodes),
            pool_tokens=pool_tokens,
            free_tokens=free_tokens,
            locked_tokens=self._num_tokens - self._num_evictable,
        )

    def check_integrity(self) -> Slots:
        num_tokens = num_evictable = num_pinned = 0
        seen = {0}
        pins = Counter(above.id for node in self.pinned() for above in node.path())
        for node in self.nodes():
            parent = node.parent
            assert parent is not None
            assert len(node.tokens) == len(node.slots) > 0, f"node {node.id}: tokens and slots differ"
            assert parent.children[int(node.tokens[0])] is node, f"node {node.id}: not where its first token says"
            assert node.end == parent.end + len(node.tokens), f"node {node.id}: wrong depth"
            assert parent is self.root or parent.locks >= node.locks, f"node {node.id}: locked above less than below"
            assert node.pins == pins[node.id] <= node.locks, f"node {node.id}: {node.pins} pins, not {pins[node.id]}"
            seen.add(node.id)
            num_pinned += len(node.tokens) if node.pins else 0
            num_tokens += len(node.tokens)
            num_evictable += len(node.tokens) if node.locks == 0 else 0
        assert seen == set(self._nodes), "the tree and the list of nodes differ"
        assert num_tokens == self._num_tokens, f"{num_tokens} tokens in the tree, {self._num_tokens} on the books"
        assert num_evictable == self._num_evictable, f"{num_evictable} evictable, {self._num_evictable} on the books"
        assert num_pinned == self._num_pinned, f"{num_pinned} pinned, {self._num_pinned} on the books"
        self.seams.check_integrity(node.tokens for node in self.nodes())
        offered = {id for _, id in self._heap}
        for node in self.nodes():
            if node.locks == 0 and not node.children:
                assert node.id in offered, f"leaf {node.id} could never be evicted"
        return self._all_slots()

    # -- inside --

    def _follow(self, tokens: Tokens) -> tuple[RadixNode, int]:
        """The last node on the way of `tokens`, and how many of them it takes to leave the tree."""
        node, length = self.root, 0
        while length < len(tokens) and length == node.end:
            child = node.children.get(int(tokens[length]))
            if child is None:
                break
            length += common_prefix(child.tokens, tokens[length:])
            node = child
        return node, length

    def _walk(self, tokens: Tokens) -> tuple[RadixNode, list[Slots]]:
        """Follow `tokens` as far as the tree goes, splitting where it leaves a node halfway, and touch the path."""
        self._tick += 1
        now = time.time()
        node, slots = self.root, []
        while node.end < len(tokens):
            child = node.children.get(int(tokens[node.end]))
            if child is None:
                break
            shared = common_prefix(child.tokens, tokens[node.end :])
            if shared < len(child.tokens):
                child = self._split(child, shared)
            child.tick, child.last_access = self._tick, now
            slots.append(child.slots)
            node = child
        self._offer(node)
        return node, slots

    def _split(self, child: RadixNode, length: int) -> RadixNode:
        """Cut `child` in two. The new upper node takes the first `length` tokens; `child` keeps its id."""
        parent = child.parent
        assert parent is not None
        assert 0 < length < len(child.tokens)
        upper = self._new_node(parent, child.tokens[:length], child.slots[:length], child.owner)
        upper.locks, upper.pins, upper.hits = child.locks, child.pins, child.hits
        upper.tick, upper.last_access = child.tick, child.last_access
        upper.children[int(child.tokens[length])] = child
        child.parent = upper
        child.tokens = child.tokens[length:]
        child.slots = child.slots[length:]
        self._record("split", upper, child=child.id, num_tokens=length, owner=child.owner)
        return upper

    def _add(self, parent: RadixNode, tokens: Tokens, slots: Slots, owner: object) -> RadixNode:
        node = self._new_node(parent, tokens, slots, owner)
        self._grow(node, tokens)
        self._record("insert", node, token_ids=self.seams.tokens(tokens), num_tokens=len(tokens), owner=owner)
        return node

    def _extend(self, node: RadixNode, tokens: Tokens, slots: Slots, owner: object) -> None:
        node.tokens = np.concatenate([node.tokens, tokens])
        node.slots = np.concatenate([node.slots, slots])
        node.end += len(tokens)
        self._grow(node, tokens)
        self._record("extend", node, token_ids=self.seams.tokens(tokens), num_tokens=len(tokens), owner=owner)

    def _grow(self, node: RadixNode, tokens: Tokens) -> None:
        node.tick, node.last_access = self._tick, time.time()
        self.seams.hold(tokens)
        self._num_tokens += len(tokens)
        self._num_evictable += len(tokens) if node.locks == 0 else 0
        self.version += 1
        self._offer(node)

    def _evict(self, num_tokens: int, reason: EvictReason, beneficiary: object) -> Slots:
        gone: list[Slots] = []
        freed = 0
        while freed < num_tokens and (node := self._pop_oldest()) is not None:
            gone.append(self._remove(node, reason, beneficiary))
            freed += len(node.tokens)
        return np.concatenate(gone) if gone else _NO_SLOTS

    def _remove(self, node: RadixNode, reason: EvictReason, beneficiary: object = None) -> Slots:
        """Take an unlocked leaf out of the tree."""
        parent = node.parent
        assert parent is not None
        del parent.children[int(node.tokens[0])]
        del self._nodes[node.id]
        count = len(node.tokens)
        self._num_tokens -= count
        self._num_evictable -= count
        self.seams.release(node.tokens)
        self.version += 1
        self._record("evict", node, num_tokens=count, owner=node.owner, reason=reason, beneficiary=beneficiary)
        self._offer(parent)
        return node.slots

    def _new_node(self, parent: RadixNode, tokens: Tokens, slots: Slots, owner: object) -> RadixNode:
        node = RadixNode(self._next_id, parent, tokens, slots, owner)
        self._next_id += 1
        self._nodes[node.id] = node
        parent.children[int(tokens[0])] = node
        return node

    def _all_slots(self) -> Slots:
        slots = [node.slots for node in self.nodes()]
        return np.concatenate(slots) if slots else _NO_SLOTS

    def _offer(self, node: RadixNode) -> None:
        """Let eviction know of a node that is (or has become) an unlocked leaf."""
        if node.locks == 0 and not node.children and node is not self.root:
            heapq.heappush(self._heap, (node.tick, node.id))
            if len(self._heap) > 64 + 4 * len(self._nodes):
                self._heap = [(n.tick, n.id) for n in self.nodes() if n.locks == 0 and not n.children]
                heapq.heapify(self._heap)

    def _pop_oldest(self) -> RadixNode | None:
        """The least recently used unlocked leaf."""
        while self._heap:
            tick, id = heapq.heappop(self._heap)
            node = self._nodes.get(id)
            if node is not None and node.tick == tick and node.locks == 0 and not node.children:
                return node
        return None

    def _record(self, kind: CacheEventKind, node: RadixNode, **what: Any) -> None:
        """See `EventLog.record`."""
        self.events.record(kind, node.id, parent=node.parent.id if node.parent else 0, **what)
