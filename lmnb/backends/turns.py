"""Work of many pieces on an event loop that others share: between two pieces they get their turn.

Knows nothing of what the pieces are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TURN_SECONDS = 0.005
AT_ONCE = 1024  # more than a GPU decodes together, so that none of it waits for the next


class Turns:
    """One task's turns."""

    def __init__(self) -> None:
        self._end = time.monotonic() + TURN_SECONDS

    async def pause(self) -> None:
        """Let others go on, if this has had its turn. To be awaited between two pieces."""
        if time.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = time.monotonic() + TURN_SECONDS


async def gathered(count: int, work: Callable[[int], Awaitable[T]], goes_on: Callable[[], bool]) -> list[T | None]:
    """The results of `work(0)`, `work(1)`, ..., so many at a time, begun in this order.

    No more are begun once one has failed, or `goes_on()` is false; None stands in their places. Those that were begun
    are waited for, and then the first error is raised.
    """
    results: list[T | None] = [None] * count
    errors: dict[int, BaseException] = {}
    turns = Turns()
    numbers = iter(range(count))

    async def take() -> None:
        for number in numbers:
            try:
                results[number] = await work(number)
            except Exception as error:
                errors[number] = error
            await turns.pause()
            if errors or not goes_on():
                return

    takers: list[asyncio.Task[None]] = []
    try:
        while len(takers) < min(count, AT_ONCE) and not errors and (goes_on() or not takers):
            takers.append(asyncio.get_running_loop().create_task(take()))
            if len(takers) % 32 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*takers)
    finally:
        for taker in takers:
            taker.cancel()
    if errors:
        raise errors[min(errors)]
    return results
