"""One engine request as seen from an asyncio task: events cross from the engine's thread, cancel goes back.

It knows nothing of prompts or roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from lmnb.backends.base import CancelToken
from lmnb.runtime.request import Event, FinishEvent, Request, TokenEvent

if TYPE_CHECKING:
    from lmnb.runtime.engine import Engine


class EngineTask:
    """A submitted request. Must be made in a running event loop; `finish` is awaited once.

    Errors that the engine finds at once (a prompt too long, an invalid regex) are raised here.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        cancel: CancelToken,
        on_tokens: Callable[[TokenEvent], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._on_tokens = on_tokens
        self._handle = engine.submit(request, self._put)
        self._forget = cancel.on_cancel(self._handle.cancel)

    def _put(self, event: Event) -> None:
        """Called by the engine's thread. One wake-up serves all events that come before the task runs."""
        with self._lock:
            self._events.append(event)
            if len(self._events) > 1:
                return
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake.set)

    async def finish(self) -> FinishEvent:
        """Pass token events on until the request's last event. If the awaiting task is cancelled, so is the
        request."""
        try:
            while True:
                await self._wake.wait()
                with self._lock:
                    events, self._events = self._events, []
                    self._wake.clear()
                for event in events:
                    if isinstance(event, FinishEvent):
                        return event
                    if self._on_tokens is not None:
                        self._on_tokens(event)
        finally:
            self._forget()
            if not self._handle.done:
                self._handle.cancel()
