"""One asynchronous client for each event loop: their connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

C = TypeVar("C")

CLOSE_SECONDS = 2.0


class LoopClients(Generic[C]):
    """Makes clients with `make`, ends them with `end`."""

    def __init__(self, make: Callable[[], C], end: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._end = end
        self._lock = threading.Lock()
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, C] = weakref.WeakKeyDictionary()

    def get(self) -> C:
        """The running loop's client."""
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._clients.get(loop)
            if client is None:
                client = self._clients[loop] = self._make()
        return client

    def close(self) -> None:
        """Close every client, each on its loop, as far as these still run."""
        with self._lock:
            clients = list(self._clients.items())
            self._clients.clear()
        for loop, client in clients:
            if not loop.is_running():
                continue
            future = asyncio.run_coroutine_threadsafe(self._close(client), loop)
            if not _is_current(loop):
                with contextlib.suppress(Exception):  # a connection that does not close is the server's to forget
                    future.result(CLOSE_SECONDS)

    async def _close(self, client: C) -> None:
        await self._end(client)


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
