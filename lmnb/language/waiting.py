"""Waiting for something that the shared loop will do: in a thread that stays interruptible, or in a coroutine.

Knows nothing of what is waited for: a condition is a function, and a `Signal` says when to look again.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

from lmnb.errors import ProgramError
from lmnb.language.interrupts import calm
from lmnb.language.loop import background
from lmnb.runtime.handle import forked_error

POLL_SECONDS = 0.1  # a waiting main thread looks up this often, so that an interrupt is seen on every platform


class Signal:
    """Tells waiters to look at their condition again. Thread-safe.

    Belongs to the process that is to notify it. Who would wait for it in a fork of that one gets EngineClosedError.
    """

    __slots__ = ("_lock", "_next", "_process", "_waiters")

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._next = 0
        self._waiters: dict[int, Callable[[], None]] = {}

    def notify(self) -> None:
        """Wake everyone who waits; call it after the change."""
        if not self._waiters:
            return
        with self._lock:
            waiters = list(self._waiters.values())
            self._waiters.clear()
        for wake in waiters:
            wake()

    def renew(self) -> None:
        """From now on it is this process that notifies, wherever the signal was made."""
        self._process = os.getpid()

    @property
    def left_behind(self) -> bool:
        """Whether nobody will notify: who would have is in the process from which this one was forked."""
        return os.getpid() != self._process

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until `ready()`; False if `timeout` seconds went by first. Interruptible."""
        if ready():
            return True
        if background.is_current():
            raise ProgramError("this waits for a generation on the very thread that advances it; wait elsewhere")
        self._check_process()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not ready():
            done = threading.Event()
            key = self._add(done.set)
            try:
                while not ready() and not done.wait(POLL_SECONDS if deadline is None else _slice(deadline)):
                    if deadline is not None and time.monotonic() >= deadline:
                        return ready()
            finally:
                self._remove(key)
        return True

    async def wait_async(self, ready: Callable[[], bool]) -> None:
        """Suspend the running coroutine, on any event loop, until `ready()`."""
        loop = asyncio.get_running_loop()
        while not ready():
            self._check_process()
            future: asyncio.Future[None] = loop.create_future()
            key = self._add(lambda future=future: _resolve_soon(loop, future))  # type: ignore[misc]
            try:
                if not ready():
                    await future
            except asyncio.CancelledError as error:
                calm(error)
                raise
            finally:
                self._remove(key)

    def _check_process(self) -> None:
        if self.left_behind:
            raise forked_error()

    def _add(self, wake: Callable[[], None]) -> int:
        with self._lock:
            key = self._next
            self._next += 1
            self._waiters[key] = wake
        return key

    def _remove(self, key: int) -> None:
        with self._lock:
            self._waiters.pop(key, None)


def _slice(deadline: float) -> float:
    return max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))


def _resolve_soon(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    if not loop.is_closed():
        loop.call_soon_threadsafe(resolve)
