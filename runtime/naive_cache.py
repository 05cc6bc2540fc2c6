"""A prefix cache with one node per token: too slow to use, simple enough to be believed.

Tests run it beside `RadixCache` and compare every answer.
"""

from __future__ import annotations

import numpy as np

from lmnb.runtime.kv_pool import Slots
from lmnb.runtime.prefix_cache import Insertion, Match, PrefixCache, Tokens


class NaiveNode:
    """One token."""

    def __init__(self, parent: NaiveNode | None, token: int, slot: int) -> None:
        self.parent = parent
        self.token = token
        self.slot = slot
        self.children: dict[int, NaiveNode] = {}
        self.locks = 0
        self.pinned = False
        self.tick = 0

    def path(self) -> list[NaiveNode]:
        """From the first token to this one."""
        nodes: list[NaiveNode] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class NaiveCache(PrefixCache[NaiveNode]):
    """Evicts token by token, so it gives up exactly as many as it is asked for."""

    def __init__(self) -> None:
        self.root = NaiveNode(None, -1, -1)
        self._tick = 0

    def _all(self) -> list[NaiveNode]:
        found, stack = [], list(self.root.children.values())
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(node.children.values())
        return found

    def _find(self, tokens: Tokens) -> NaiveNode:
        node = self.root
        for token in tokens.tolist():
            if token not in node.children:
                break
            node = node.children[token]
        return node

    def _touch(self, node: NaiveNode) -> None:
        self._tick += 1
        for each in node.path():
            each.tick = self._tick

    @property
    def num_tokens(self) -> int:
        return len(self._all())

    @property
    def num_evictable(self) -> int:
        return sum(node.locks == 0 for node in self._all())

    @property
    def num_pinned(self) -> int:
        return len({id(each) for node in self._all() if node.pinned for each in node.path()})

    def peek(self, tokens: Tokens) -> int:
        return len(self._find(tokens).path())

    def acquire(self, tokens: Tokens) -> Match[NaiveNode]:
        node = self._find(tokens)
        self._touch(node)
        self.lock(node)
        return Match(node, np.array([each.slot for each in node.path()], dtype=np.int64))

    def insert(
        self, tokens: Tokens, slots: Slots, *, start: int = 0, tail: NaiveNode | None = None, owner: object = None
    ) -> Insertion[NaiveNode]:
        node = self._find(tokens)
        existing = [each.slot for each in node.path()]
        for token, slot in zip(tokens[len(existing) :].tolist(), slots[len(existing) :].tolist(), strict=True):
            node.children[token] = NaiveNode(node, token, slot)
            node = node.children[token]
        self._touch(node)
        return Insertion(node, len(existing), np.array(existing[start:], dtype=np.int64))

    def lock(self, node: NaiveNode) -> None:
        for each in node.path():
            each.locks += 1

    def release(self, node: NaiveNode) -> None:
        for each in node.path():
            assert each.locks > 0, "a node was released more often than it was locked"
            each.locks -= 1

    def pin(self, node: NaiveNode) -> None:
        if not node.pinned:
            node.pinned = True
            self.lock(node)

    def unpin(self, node: NaiveNode) -> None:
        if node.pinned:
            node.pinned = False
            self.release(node)

    def evict(self, num_tokens: int, *, beneficiary: object = None) -> Slots:
        slots: list[int] = []
        while len(slots) < num_tokens:
            leaves = [node for node in self._all() if not node.children and node.locks == 0]
            if not leaves:
                break
            slots.append(self._remove(min(leaves, key=lambda node: node.tick)))
        return np.array(slots, dtype=np.int64)

    def forget(self, slots: Slots) -> None:
        """Drop exactly the tokens with these slots; they must form whole unlocked tails."""
        doomed = {int(slot) for slot in slots}
        while doomed:
            leaves = [node for node in self._all() if not node.children and node.slot in doomed]
            assert leaves, f"slots {sorted(doomed)[:5]} are not at the ends of cached prefixes"
            for node in leaves:
                assert node.locks == 0, f"slot {node.slot} is locked"
                doomed.remove(self._remove(node))

    def discard(self, node: NaiveNode) -> Slots:
        gone = [each for each in self._all() if node in each.path()]
        assert all(each.locks == 0 for each in gone), "a locked token was discarded"
        self._remove(node)
        return np.array([each.slot for each in gone], dtype=np.int64)

    def _remove(self, node: NaiveNode) -> int:
        assert node.parent is not None
        del node.parent.children[node.token]
        return node.slot

    def reset(self) -> Slots:
        kept = {id(each) for node in self._all() if node.pinned for each in node.path()}
        gone = [node for node in self._all() if id(node) not in kept]
        assert all(node.locks == 0 for node in gone), "the cache was reset while a request held a part of it"
        for node in gone:
            self._remove(node)
        return np.array([node.slot for node in gone], dtype=np.int64)

    def check_integrity(self) -> Slots:
        for node in self._all():
            assert node.locks >= sum(child.locks for child in node.children.values())
        return np.array([node.slot for node in self._all()], dtype=np.int64)
