"""What happened in the radix cache, for those who ask, or who want to be told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from lmnb.runtime.events import CacheEvent
from lmnb.runtime.radix_cache import RadixCache

CacheListener = Callable[[Sequence[CacheEvent]], None]

logger = logging.getLogger("lmnb")


class CacheFeed:
    """Used by the engine's thread; listeners are called there."""

    def __init__(self, cache: RadixCache) -> None:
        self.listeners: list[CacheListener] = []
        self._cache = cache
        self._num_announced = 0  # events that listeners have seen

    def announce(self) -> None:
        """Hand new cache events to the listeners."""
        if self._cache.events.next_seq == self._num_announced:
            return
        fresh = self.since(self._num_announced)
        self._num_announced = self._cache.events.next_seq
        for listener in tuple(self.listeners):
            self._tell(listener, fresh)

    def since(self, seq: int) -> list[CacheEvent]:
        """Recorded events from `seq` on."""
        return self._cache.events.since(seq)

    def _tell(self, listener: CacheListener, events: Sequence[CacheEvent]) -> None:
        try:
            listener(events)
        except Exception:  # its own, not that of the requests that are running
            logger.exception("a listener of the cache raised, and is told of nothing more")
            self.forget(listener)

    def forget(self, listener: CacheListener) -> None:
        """No-op if it is not there."""
        if listener in self.listeners:
            self.listeners.remove(listener)
