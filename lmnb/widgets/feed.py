"""Hands events from whoever makes them to a slow consumer: in order, none lost, none doubled, a few calls a second.

One thread a feed, which exists only while there is something to hand over. Knows nothing of what events mean.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
logger = logging.getLogger("lmnb.widgets")

WIDGET_INTERVAL = 1 / 20  # seconds; 20 messages a second is where front ends are smooth and drop nothing
HTML_INTERVAL = 1 / 3


class Feed(Generic[T]):
    """Calls `deliver(batch)` on its own thread, at most once per `interval` seconds.

    The first event after a pause goes out at once. `close` delivers what is left. A delivery that raises is
    logged and the next ones go on: a broken view must not stop a run.
    """

    def __init__(
        self, deliver: Callable[[list[T]], None], interval: float, *, linger: float = 2.0, name: str = "lmnb-view"
    ) -> None:
        self._deliver = deliver
        self._interval = interval
        self._linger = linger  # seconds an idle thread waits for more before it ends
        self._name = name
        self._condition = threading.Condition()
        self._pending: list[T] = []
        self._poked = False
        self._hurry = False
        self._closed = False
        self._idle = False
        self._thread: threading.Thread | None = None

    def put(self, items: Iterable[T], *, hurry: bool = False) -> None:
        """Queue events. Any thread; never waits for the consumer. Ignored after `close`.

        With `hurry` (for the last ones) they are delivered without waiting for the interval.
        """
        with self._condition:
            if not self._closed:
                self._pending.extend(items)
                if hurry:
                    self._hurry = True
                    self._condition.notify_all()
                self._wake()

    def poke(self) -> bool:
        """Ask for one delivery, even of an empty batch. False if the feed is closed."""
        with self._condition:
            if self._closed:
                return False
            self._poked = True
            self._wake()
            return True

    def close(self, timeout: float = 5.0) -> bool:
        """Deliver what is left and end the thread. False if that took longer than `timeout` seconds."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            self._thread.start()
        elif self._idle:  # a busy or pacing thread looks again by itself: no wake-up per event
            self._condition.notify_all()

    def _loop(self) -> None:
        not_before = 0.0
        while self._wait_for_work():
            with self._condition:
                delay = not_before - time.monotonic()
                if delay > 0:
                    self._condition.wait_for(lambda: self._closed or self._hurry, delay)
                batch, self._pending, self._poked, self._hurry = self._pending, [], False, False
            try:
                self._deliver(batch)
            except Exception:
                logger.exception("a view could not be updated")
            not_before = time.monotonic() + self._interval

    def _wait_for_work(self) -> bool:
        """True when there is something to deliver; False when this thread should end."""
        with self._condition:
            self._idle = True
            ready = self._condition.wait_for(lambda: self._pending or self._poked or self._closed, self._linger)
            self._idle = False
            if self._pending or self._poked:
                return True
            assert self._closed or not ready
            self._thread = None
            return False
