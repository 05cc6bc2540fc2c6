"""What happened in the radix cache, for those who ask, or who want to be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmnb.runtime.events import CacheEvent
from lmnb.runtime.radix_cache import RadixCache

CacheListener = Callable[[Sequence[CacheEvent]], None]


class CacheFeed:
    """Used by the engine's thread; listeners are called there."""

    def __init__(self, cache: RadixCache) -> None:
        self.listeners: list[CacheListener] = []
        self._cache = cache
        self._num_announced = 0  # events that listeners have seen

    def announce(self) -> None:
        """Hand new cache events to the listeners."""
        events = self._cache.events
        if not events or events[-1].seq < self._num_announced:
            return
        fresh = self.since(self._num_announced)
        self._num_announced = events[-1].seq + 1
        for listener in tuple(self.listeners):
            listener(fresh)

    def since(self, seq: int) -> list[CacheEvent]:
        """Recorded events from `seq` on."""
        events = self._cache.events
        if not events or events[-1].seq < seq:
            return []
        count = min(len(events), events[-1].seq - seq + 1)
        return [events[len(events) - count + i] for i in range(count)]

    def forget(self, listener: CacheListener) -> None:
        """No-op if it is not there."""
        if listener in self.listeners:
            self.listeners.remove(listener)
