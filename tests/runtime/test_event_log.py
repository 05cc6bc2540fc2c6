"""The cache's events are kept within bounds: by their number, and by the tokens that they tell of."""

from __future__ import annotations

import random

import pytest

from lmnb.runtime.event_log import EventLog


def log_of(sizes: list[int], **bounds: int) -> EventLog:
    log = EventLog(**bounds)
    for size in sizes:
        log.record("insert", 1, num_tokens=size, token_ids=tuple(range(size)))
    return log


def test_the_newest_events_are_kept() -> None:
    log = log_of([1] * 10, max_events=4)
    assert [event.seq for event in log] == [6, 7, 8, 9]
    assert log.next_seq == 10


def test_few_events_of_many_tokens_are_kept_too() -> None:
    assert [event.seq for event in log_of([50, 30, 0, 40], max_tokens=70)] == [1, 2, 3]
    assert [event.seq for event in log_of([50, 30, 1000], max_tokens=70)] == [2]  # the last one always
    assert [event.seq for event in log_of([1000, 0, 0, 5], max_tokens=70)] == [1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_is_told_in_order_from_any_number_on(seed: int) -> None:
    rng = random.Random(seed)
    log = log_of([rng.randrange(20) for _ in range(rng.randrange(60))], max_events=30, max_tokens=200)
    kept = list(log)
    for seq in range(-1, log.next_seq + 2):
        assert log.since(seq) == [event for event in kept if event.seq >= seq]
