"""The radix cache: a compressed prefix tree over token ids whose nodes own KV slots.

Source: RadixAttention, Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs",
arXiv 2312.07104. It owns slots and reports every change as a `CacheEvent`; it never touches KV memory.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator

import numpy as np

from lmnb.runtime.events import CacheEvent, CacheEventKind, CacheSnapshot, NodeSnapshot
from lmnb.runtime.kv_pool import Slots
from lmnb.runtime.prefix_cache import Insertion, Match, PrefixCache, Tokens, common_prefix

_NO_TOKENS = np.empty(0, dtype=np.int32)
_NO_SLOTS = np.empty(0, dtype=np.int64)
_MAX_RECORDED_EVENTS = 100_000


class RadixNode:
    """One edge of the tree with the node below it: `tokens[i]` has its KV in `slots[i]`."""

    __slots__ = (
        "children",
        "end",
        "hits",
        "id",
        "last_access",
        "locks",
        "owner",
        "parent",
        "slots",
        "tick",
        "tokens",
    )

    def __init__(self, id: int, parent: RadixNode | None, tokens: Tokens, slots: Slots, owner: object) -> None:
        self.id = id
        self.parent = parent
        self.tokens = tokens
        self.slots = slots
        self.owner = owner
        self.children: dict[int, RadixNode] = {}
        self.end: int = len(tokens) + (parent.end if parent else 0)  # tokens from the root to this node's end
        self.locks = 0
        self.hits = 0
        self.tick = 0
        self.last_access = 0.0


class RadixCache(PrefixCache[RadixNode]):
    """Used by one thread. Node ids are never reused within one cache; the root is 0."""

    def __init__(self) -> None:
        self.root = RadixNode(0, None, _NO_TOKENS, _NO_SLOTS, None)
        self.version = 0  # grows whenever what `peek` says may have changed
        self.events: deque[CacheEvent] = deque(maxlen=_MAX_RECORDED_EVENTS)
        self._nodes = {0: self.root}
        self._num_tokens = 0
        self._num_evictable = 0
        self._next_id = 1
        self._next_seq = 0
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
    def num_nodes(self) -> int:
        return len(self._nodes) - 1

    def peek(self, tokens: Tokens) -> int:
        node, length = self.root, 0
        while length < len(tokens):
            child = node.children.get(int(tokens[length]))
            if child is None:
                break
            shared = common_prefix(child.tokens, tokens[length:])
            length += shared
            if shared < len(child.tokens):
                break
            node = child
        return length

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
            if node is tail and not node.children:
                self._extend(node, rest, rest_slots, owner)
            else:
                node = self._add(node, rest, rest_slots, owner)
        return Insertion(node, num_existing, existing)

    def lock(self, node: RadixNode) -> None:
        for ancestor in self._path(node):
            if ancestor.locks == 0:
                self._num_evictable -= len(ancestor.tokens)
            ancestor.locks += 1

    def release(self, node: RadixNode) -> None:
        for ancestor in self._path(node):
            assert ancestor.locks > 0, "a node was released more often than it was locked"
            ancestor.locks -= 1
            if ancestor.locks == 0:
                self._num_evictable += len(ancestor.tokens)
                self._offer(ancestor)

    def evict(self, num_tokens: int) -> Slots:
        gone: list[Slots] = []
        freed = 0
        while freed < num_tokens and (node := self._pop_oldest()) is not None:
            parent = node.parent
            assert parent is not None
            del parent.children[int(node.tokens[0])]
            del self._nodes[node.id]
            gone.append(node.slots)
            freed += len(node.tokens)
            self._num_tokens -= len(node.tokens)
            self._num_evictable -= len(node.tokens)
            self.version += 1
            self._record("evict", node, num_tokens=len(node.tokens), owner=node.owner)
            self._offer(parent)
        return np.concatenate(gone) if gone else _NO_SLOTS

    def reset(self) -> Slots:
        assert self._num_evictable == self._num_tokens, "the cache was reset while a request held a part of it"
        slots = self._all_slots()
        self.root.children.clear()
        self._nodes = {0: self.root}
        self._heap.clear()
        self._num_tokens = self._num_evictable = 0
        self.version += 1
        self._record("reset", self.root)
        return slots

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
                token_ids=tuple(node.tokens.tolist()),
                locks=node.locks,
                last_access=node.last_access,
                hits=node.hits,
                owner=node.owner,
            )
            for node in self.nodes()
        ]
        return CacheSnapshot(
            seq=self._next_seq - 1,
            nodes=tuple(nodes),
            pool_tokens=pool_tokens,
            free_tokens=free_tokens,
            locked_tokens=self._num_tokens - self._num_evictable,
        )

    def check_integrity(self) -> Slots:
        num_tokens = num_evictable = 0
        seen = {0}
        for node in self.nodes():
            parent = node.parent
            assert parent is not None
            assert len(node.tokens) == len(node.slots) > 0, f"node {node.id}: tokens and slots differ"
            assert parent.children[int(node.tokens[0])] is node, f"node {node.id}: not where its first token says"
            assert node.end == parent.end + len(node.tokens), f"node {node.id}: wrong depth"
            assert parent is self.root or parent.locks >= node.locks, f"node {node.id}: locked above less than below"
            seen.add(node.id)
            num_tokens += len(node.tokens)
            num_evictable += len(node.tokens) if node.locks == 0 else 0
        assert seen == set(self._nodes), "the tree and the list of nodes differ"
        assert num_tokens == self._num_tokens, f"{num_tokens} tokens in the tree, {self._num_tokens} on the books"
        assert num_evictable == self._num_evictable, f"{num_evictable} evictable, {self._num_evictable} on the books"
        offered = {id for _, id in self._heap}
        for node in self.nodes():
            if node.locks == 0 and not node.children:
                assert node.id in offered, f"leaf {node.id} could never be evicted"
        return self._all_slots()

    # -- inside --

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
        upper.locks, upper.hits = child.locks, child.hits
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
        self._record("insert", node, token_ids=tuple(tokens.tolist()), num_tokens=len(tokens), owner=owner)
        return node

    def _extend(self, node: RadixNode, tokens: Tokens, slots: Slots, owner: object) -> None:
        node.tokens = np.concatenate([node.tokens, tokens])
        node.slots = np.concatenate([node.slots, slots])
        node.end += len(tokens)
        self._grow(node, tokens)
        self._record("extend", node, token_ids=tuple(tokens.tolist()), num_tokens=len(tokens), owner=owner)

    def _grow(self, node: RadixNode, tokens: Tokens) -> None:
        node.tick, node.last_access = self._tick, time.time()
        self._num_tokens += len(tokens)
        self._num_evictable += len(tokens) if node.locks == 0 else 0
        self.version += 1
        self._offer(node)

    def _new_node(self, parent: RadixNode, tokens: Tokens, slots: Slots, owner: object) -> RadixNode:
        node = RadixNode(self._next_id, parent, tokens, slots, owner)
        self._next_id += 1
        self._nodes[node.id] = node
        parent.children[int(tokens[0])] = node
        return node

    def _path(self, node: RadixNode) -> Iterator[RadixNode]:
        """`node` and its ancestors, without the root (which is never evicted)."""
        while node.parent is not None:
            yield node
            node = node.parent

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

    def _record(
        self,
        kind: CacheEventKind,
        node: RadixNode,
        *,
        child: int = 0,
        num_tokens: int = 0,
        token_ids: tuple[int, ...] = (),
        owner: object = None,
    ) -> None:
        parent = node.parent.id if node.parent else 0
        self.events.append(
            CacheEvent(self._next_seq, time.time(), kind, node.id, parent, child, num_tokens, token_ids, owner)
        )
        self._next_seq += 1
