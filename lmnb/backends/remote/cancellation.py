"""Ends an awaited call when a run's cancel token is switched, from whatever thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from lmnb.backends.base import CancelToken

T = TypeVar("T")


async def until_cancelled(work: Coroutine[Any, Any, T], cancel: CancelToken) -> T | None:
    """The result of `work`, or None if `cancel` came first; `work` has then been cancelled and has ended.

    If the awaiting task itself is cancelled, so is `work`.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)

    def stop() -> None:
        with suppress(RuntimeError):  # the loop was closed: nothing runs there any more
            loop.call_soon_threadsafe(task.cancel)

    forget = cancel.on_cancel(stop)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():  # it is we who were cancelled
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            raise
        if cancel.cancelled:
            return None
        raise
    finally:
        forget()
