"""Many pieces of work on a loop: so many at a time, in order, and others get their turns."""

from __future__ import annotations

import asyncio

import pytest

from lmnb.backends.turns import AT_ONCE, Turns, gathered


def always() -> bool:
    return True


def test_so_many_are_begun_at_a_time_and_all_give_their_results() -> None:
    begun: list[int] = []
    most = 0

    async def work(number: int) -> int:
        nonlocal most
        begun.append(number)
        running.add(number)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(number)
        return -number

    running: set[int] = set()
    count = 3 * AT_ONCE
    assert asyncio.run(gathered(count, work, always)) == [-number for number in range(count)]
    assert begun[:AT_ONCE] == list(range(AT_ONCE))
    assert sorted(begun) == list(range(count))
    assert most <= AT_ONCE


def test_none_is_begun_once_it_should_stop() -> None:
    begun: list[int] = []

    async def work(number: int) -> int:
        begun.append(number)
        await asyncio.sleep(0)
        return number

    results = asyncio.run(gathered(50_000, work, lambda: len(begun) < 100))
    assert len(begun) < 2 * AT_ONCE
    assert results[0] == 0
    assert results[-1] is None


def test_a_failure_lets_what_was_begun_end_and_is_raised() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        if number in (3, 5):
            raise ValueError(number)
        ended.append(number)

    with pytest.raises(ValueError, match="3"):
        asyncio.run(gathered(50_000, work, always))
    assert {0, 1, 2, 4} <= set(ended)
    assert len(ended) < 2 * AT_ONCE


def test_a_cancelled_task_cancels_what_it_has_begun() -> None:
    cancelled: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def run() -> None:
        task = asyncio.create_task(gathered(10, work, always))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert cancelled == list(range(10))


def test_others_have_their_turn_in_between() -> None:
    async def run() -> int:
        seen = 0

        async def other() -> None:
            nonlocal seen
            while True:
                seen += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        turns = Turns()
        while seen < 3:  # for ever, were there no turns
            await turns.pause()
        task.cancel()
        return seen

    assert asyncio.run(run()) >= 3
