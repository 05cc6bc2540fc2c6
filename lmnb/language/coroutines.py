"""Running a coroutine to its end from plain code, also where an event loop runs already, as in a notebook's cell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import Any, TypeVar

from lmnb.runtime import threads

T = TypeVar("T")

_POLL_SECONDS = 0.1


def run_to_end(make: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """The result of `make()`, run on a loop in a thread of its own: the caller's thread and loop are left alone.

    An interrupt cancels the coroutine.
    """
    thread = LoopThread(name)
    try:
        future = thread.submit(make)
        while not wait([future], _POLL_SECONDS).done:
            pass  # short waits let an interrupt through on every platform
        return future.result()
    finally:
        thread.stop()


class LoopThread:
    """An event loop in a thread of its own, for coroutines of one batch or one call."""

    def __init__(self, name: str, limit: int | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._limit = asyncio.Semaphore(limit) if limit is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        threads.start(self._thread)

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run `make()` with the caller's context variables; with a limit, when its turn comes."""
        future: Future[T] = Future()
        context = copy_context()

        async def work() -> None:
            try:
                if self._limit is None:
                    future.set_result(await make())
                else:
                    async with self._limit:
                        future.set_result(await make())
            except asyncio.CancelledError:
                future.cancel()
            except BaseException as error:
                future.set_exception(error)

        def start() -> None:
            # The context comes by `Context.run`, because create_task takes one only since Python 3.11.
            task = context.run(self._loop.create_task, work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(start)
        return future

    def stop(self) -> None:
        """Cancel what runs and end the thread. Returns at once."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._drain()))

    async def _drain(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
