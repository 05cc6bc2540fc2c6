"""What people may do to the radix cache by hand: pin, unpin, evict, flush. Refuses, with the reason, what would hurt.

Used by the engine's thread only, between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmnb.errors import CacheError
from lmnb.runtime.argument_checks import shown
from lmnb.runtime.events import CachePin, owner_label
from lmnb.runtime.radix_cache import RadixCache
from lmnb.runtime.radix_node import RadixNode
from lmnb.runtime.scheduler import Scheduler


class CacheControl:
    """Nodes are named by their numbers in the tree."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.pool
        self._cache: RadixCache = scheduler.cache

    def pins(self) -> list[CachePin]:
        """What is pinned, oldest node first."""
        return [self._as_pin(node) for node in self._cache.pinned()]

    def pin(self, id: int) -> CachePin:
        """Keep a node and all above it. CacheError beyond half of the pool: requests need the rest."""
        node = self._find(id)
        self._require_room(sum(len(each.tokens) for each in node.path() if each.pins == 0))
        self._cache.pin(node)
        return self._as_pin(node)

    def pin_tokens(self, token_ids: Sequence[int]) -> CachePin | None:
        """Keep a prefix that is cached. None, and nothing done, if it is not cached whole; CacheError at once if it
        could not be pinned then."""
        tokens = np.array(token_ids, dtype=np.int32)
        num_cached = self._cache.peek(tokens)
        if not len(tokens) or num_cached < len(tokens):
            deepest = self._cache.deepest(tokens[:num_cached]) if num_cached else None
            pinned = sum(len(each.tokens) for each in deepest.path() if each.pins) if deepest else 0
            self._require_room(len(tokens) - min(pinned, num_cached))
            return None
        match = self._cache.acquire(tokens)
        try:
            return self.pin(match.node.id)
        finally:
            self._cache.release(match.node)

    def unpin(self, id: int) -> None:
        """Take one pin back. CacheError where there is none."""
        node = self._find(id)
        if not node.pinned:
            below = " itself; a pin below keeps it" if node.pins else ""
            raise CacheError(f"node {id} is not pinned{below}")
        self._cache.unpin(node)

    def unpin_all(self) -> int:
        """Take all pins back; how many there were."""
        pinned = self._cache.pinned()
        for node in pinned:
            self._cache.unpin(node)
        return len(pinned)

    def evict(self, id: int) -> int:
        """Give up a node and everything below it; how many tokens that were. CacheError if something keeps it."""
        node = self._find(id)
        if node.locks > node.pins:
            users = self._scheduler.users(node)
            owners = ", ".join(dict.fromkeys(label for user in users if (label := owner_label(user.request.owner))))
            count = "a running request uses" if len(users) == 1 else f"{len(users)} running requests use"
            by = f" ({owners})" if owners else ""
            raise CacheError(f"{count} node {id}{by}: wait for the end, or cancel, and evict it then")
        if node.pins:
            where = "it is pinned" if node.pinned else "a pinned node lies below it"
            raise CacheError(f"node {id} cannot be evicted while {where}: unpin first")
        slots = self._cache.discard(node)
        self._pool.free(slots)
        return len(slots)

    def evict_tokens(self, token_ids: Sequence[int]) -> int:
        """`evict` what of a cached prompt no other branch shares, and what continues it. 0 if nothing is cached."""
        node = self._cache.deepest(np.array(token_ids, dtype=np.int32))
        if node is None:
            return 0
        for above in node.path()[1:]:
            if len(above.children) > 1 or above.locks:
                break
            node = above
        return self.evict(node.id)

    def flush(self) -> None:
        """Forget everything that no pin keeps. No request may be running."""
        self._pool.free(self._cache.reset())

    def _require_room(self, num_tokens: int) -> None:
        held, most = self._cache.num_pinned + num_tokens, self._pool.num_slots // 2
        if held > most:
            raise CacheError(
                f"pins may hold half of the KV pool, {most:,} tokens, and this would make it {held:,}: unpin something "
                "first, or load the model with a larger kv_cache"
            )

    def _find(self, id: int) -> RadixNode:
        node = self._cache.find(id)
        if node is None:
            raise CacheError(f"the cache has no node {shown(id)} any more: look at the tree as it is now")
        return node

    def _as_pin(self, node: RadixNode) -> CachePin:
        path = reversed(node.path())
        return CachePin(node.id, tuple(i for each in path for i in self._cache.seams.tokens(each.tokens)))
