"""A prefix tree that changes as often as one likes: the real radix cache under made-up traffic, as a view's source."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from lmnb.backends.base import Owner
from lmnb.runtime.cache_feed import CacheFeed
from lmnb.runtime.events import CacheEvent, CacheSnapshot, EngineStatus
from lmnb.runtime.radix_cache import RadixCache

_TICK = 0.005  # seconds between bursts of events, as between an engine's steps


class BusyTree:
    """About `num_nodes` nodes. `run` makes `rate` events a second: prompts hit, split and insert, and leaves go."""

    def __init__(self, num_nodes: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._tree = RadixCache()
        self._lock = threading.Lock()
        self._feed = CacheFeed(self._tree)
        self._num_nodes = num_nodes
        while self._tree.num_nodes < num_nodes:
            self._ask()
        self._feed.announce()
        self.seconds_late = 0.0

    @property
    def num_events(self) -> int:
        return self._tree.events.next_seq

    @property
    def num_nodes(self) -> int:
        return self._tree.num_nodes

    def run(self, seconds: float, rate: float) -> None:
        """Make events for so long, in a thread's own time; returns when they are over."""
        began, first = time.perf_counter(), self.num_events
        while (now := time.perf_counter() - began) < seconds:
            with self._lock:
                self.happen(int(now * rate) - (self.num_events - first))
                self._feed.announce()
            time.sleep(_TICK)
        self.seconds_late = time.perf_counter() - began - seconds

    def happen(self, num_events: int) -> None:
        """Let at least so many events happen, and tell nobody."""
        last = self.num_events + num_events
        while self.num_events < last:
            self._ask()
            while self._tree.num_nodes > self._num_nodes:
                self._tree.evict(1)

    # what a view asks

    def subscribe(self, callback: Callable[[Sequence[CacheEvent]], None]) -> Callable[[], None]:
        self._feed.listeners.append(callback)
        return lambda: self._feed.forget(callback)

    def snapshot(self) -> CacheSnapshot:
        with self._lock:
            return self._tree.snapshot(pool_tokens=10**6, free_tokens=10**6 - self._tree.num_tokens)

    def cache_events(self, since_seq: int) -> list[CacheEvent]:
        with self._lock:
            return self._feed.since(since_seq + 1)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f" word{i}" for i in ids)

    def holders(self) -> list[tuple[int, object]]:
        return []

    def status(self) -> EngineStatus:
        cached = self._tree.num_tokens
        return EngineStatus(
            model="made up", device="cpu", dtype="float32", context_tokens=8192, pool_tokens=10**6,
            free_tokens=10**6 - cached, cached_tokens=cached, running=0, waiting=0, num_steps=0, prompt_tokens=0,
            reused_tokens=0, generated_tokens=0, pool_bytes=10**9, weight_bytes=0, step_seconds=0.0,
            bookkeeping_seconds=0.0,
        )  # fmt: skip

    def _ask(self) -> None:
        """One request: a prompt of up to four parts of which many prompts have the first ones."""
        owner = Owner(run="r", program="busy", cell=str(self._random.randint(1, 9)), line=self._random.randint(1, 20))
        parts = [self._random.randint(0, most) for most in (5, 30, 60, 400)[: self._random.randint(2, 4)]]
        ids = np.array([100 * part + i for part in parts for i in range(self._random.choice((4, 8, 8, 12)))], np.int32)
        match = self._tree.acquire(ids)
        self._tree.record_hit(match.node, len(match.slots), owner)
        self._tree.insert(ids, np.zeros(len(ids), np.int64), owner=owner)
        self._tree.release(match.node)
