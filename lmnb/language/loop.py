"""The one background event loop on which every state's stream advances.

A daemon thread runs it; it starts at first use, and again after `stop` or in a forked process. It knows nothing of
programs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from lmnb.runtime import threads
from lmnb.runtime.process_end import uninterrupted

T = TypeVar("T")

STOP_SECONDS = 2.0


class BackgroundLoop:
    """An asyncio loop in its own thread. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def is_current(self) -> bool:
        """Whether the caller runs on the loop's thread."""
        return getattr(_on_loop, "here", False)

    @property
    def num_tasks(self) -> int:
        """How many streams are advancing."""
        return len(self._tasks)

    def post(self, work: Callable[[], None]) -> None:
        """Do `work` on the loop, after everything that was posted before. Returns at once."""
        if self.is_current():
            asyncio.get_running_loop().call_soon(work)
            return
        with self._lock:  # held while posting, so that the loop cannot stop in between
            self._running().call_soon_threadsafe(work)

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine on the loop, from where posted work has got to."""
        self.post(lambda: self._start_task(make))

    def call(self, work: Callable[[], T]) -> T:
        """Do `work` on the loop and return its result; at once if this is the loop's thread. Interruptible."""
        if self.is_current():
            return work()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self.post(run)
        return future.result()

    def stop(self) -> None:
        """Cancel what runs and end the thread. The next use starts a new one."""
        if self.is_current():
            raise RuntimeError("the background loop cannot be stopped from its own thread")
        with self._lock:  # the loop's own thread never takes it, so it can end meanwhile
            thread, loop = self._thread, self._loop
            self._thread = self._loop = None
            if thread is None or loop is None or not thread.is_alive():
                return
            asyncio.run_coroutine_threadsafe(self._drain(), loop).add_done_callback(
                lambda _: loop.call_soon_threadsafe(loop.stop)
            )
            thread.join(STOP_SECONDS)

    def forget(self) -> None:
        """Start afresh in a forked child process, which has the object but not the thread."""
        self.__init__()  # type: ignore[misc]

    async def _drain(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            self._loop = asyncio.new_event_loop()
            self._tasks = set()
            self._thread = threading.Thread(target=_run_forever, args=(self._loop,), name="lmnb-loop", daemon=True)
            threads.start(self._thread)
        return self._loop

    def _start_task(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(make())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    _on_loop.here = True
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


_on_loop = threading.local()
background = BackgroundLoop()


@atexit.register
def _stop() -> None:
    with uninterrupted():
        background.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=background.forget)
