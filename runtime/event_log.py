"""What has happened in the radix cache, as far as it is kept: within bounds, so that a kernel may live long."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import islice

from lmnb.runtime.events import CacheEvent, CacheEventKind, EvictReason

_MAX_EVENTS = 100_000
_MAX_TOKENS = 1_000_000  # whose ids events hold; some 40 MB of Python's numbers


class EventLog:
    """Numbers events from 0, and keeps the newest `max_events` of them that hold `max_tokens` token ids together (the
    last one whatever it holds). For one thread."""

    def __init__(self, *, max_events: int = _MAX_EVENTS, max_tokens: int = _MAX_TOKENS) -> None:
        self.next_seq = 0
        self._max_events, self._max_tokens = max_events, max_tokens
        self._events: deque[CacheEvent] = deque()
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[CacheEvent]:
        return iter(self._events)

    def record(
        self,
        kind: CacheEventKind,
        node: int,
        *,
        parent: int = 0,
        child: int = 0,
        num_tokens: int = 0,
        token_ids: tuple[int, ...] = (),
        owner: object = None,
        reason: EvictReason | None = None,
        beneficiary: object = None,
    ) -> None:
        """Keep an event of now; see `CacheEvent`."""
        what = (kind, node, parent, child, num_tokens, token_ids, owner, reason, beneficiary)
        self._events.append(CacheEvent(self.next_seq, time.time(), *what))
        self.next_seq += 1
        self._num_tokens += len(token_ids)
        while len(self._events) > 1 and (len(self._events) > self._max_events or self._num_tokens > self._max_tokens):
            self._num_tokens -= len(self._events.popleft().token_ids)

    def since(self, seq: int) -> list[CacheEvent]:
        """Those from number `seq` on that are kept."""
        count = min(len(self._events), self.next_seq - seq)
        newest = list(islice(reversed(self._events), max(0, count)))
        return newest[::-1]
