"""One asynchronous client for each event loop: their connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Future
from typing import Generic, TypeVar

C = TypeVar("C")

CLOSE_SECONDS = 2.0


class LoopClients(Generic[C]):
    """Makes clients with `make`, ends them with `end`, which must not hold on to who made this. Clients that nobody
    has closed are closed when this goes."""

    def __init__(self, make: Callable[[], C], end: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._end = end
        self._lock = threading.Lock()
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, C] = weakref.WeakKeyDictionary()
        weakref.finalize(self, _close_all, self._clients, end).atexit = False

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
            clients = dict(self._clients)
            self._clients.clear()
        for loop, closed in _close_all(clients, self._end):
            if not _is_current(loop):
                with contextlib.suppress(Exception):  # a connection that does not close is the server's to forget
                    closed.result(CLOSE_SECONDS)


def _close_all(
    clients: MutableMapping[asyncio.AbstractEventLoop, C], end: Callable[[C], Awaitable[None]]
) -> list[tuple[asyncio.AbstractEventLoop, Future[None]]]:
    """Have each client closed on its loop, if that runs. Waits for nothing: the collector may have called."""
    return [
        (loop, asyncio.run_coroutine_threadsafe(_close(client, end), loop))
        for loop, client in list(clients.items())
        if loop.is_running()
    ]


async def _close(client: C, end: Callable[[C], Awaitable[None]]) -> None:
    await end(client)


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
