"""The feed: order, completeness, pace, a slow or broken consumer, and no thread left."""

from __future__ import annotations

import threading
import time

import pytest
from patience import until

from lmnb.widgets.feed import Feed


def threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_everything_arrives_once_in_order_at_the_given_pace() -> None:
    batches: list[list[int]] = []
    feed: Feed[int] = Feed(batches.append, 0.05)
    began = time.monotonic()
    for number in range(2000):
        feed.put([number])
        if number % 10 == 0:
            time.sleep(0.001)
    assert feed.close(30)
    seconds = time.monotonic() - began
    assert [number for batch in batches for number in batch] == list(range(2000))
    assert len(batches) <= seconds / 0.05 + 2


def test_a_slow_consumer_gets_few_large_batches_and_producers_never_wait() -> None:
    batches: list[list[int]] = []
    all_put = threading.Event()

    def slow(batch: list[int]) -> None:
        assert all_put.wait(30)
        batches.append(batch)

    feed: Feed[int] = Feed(slow, 0.01)
    for number in range(5000):
        feed.put([number])
    all_put.set()
    assert feed.close(30)
    assert [number for batch in batches for number in batch] == list(range(5000))
    assert len(batches) <= 2


def test_the_first_event_after_a_pause_goes_out_at_once() -> None:
    arrived = threading.Event()
    feed: Feed[int] = Feed(lambda batch: arrived.set(), 3600.0)
    feed.put([1])
    assert arrived.wait(30)
    assert feed.close(30)


def test_close_does_not_wait_for_the_pace_and_delivers_what_is_left() -> None:
    batches: list[list[int]] = []
    feed: Feed[int] = Feed(batches.append, 3600.0)
    feed.put([1])
    until(lambda: batches)
    feed.put([2, 3])
    assert feed.close(timeout=30)
    assert batches == [[1], [2, 3]]
    feed.put([4])
    assert batches == [[1], [2, 3]]
    assert not feed.poke()


def test_many_producers_lose_nothing() -> None:
    got: list[tuple[int, int]] = []
    feed: Feed[tuple[int, int]] = Feed(got.extend, 0.005)
    producers = [
        threading.Thread(target=lambda who=who: [feed.put([(who, n)]) for n in range(500)]) for who in range(8)
    ]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert feed.close(30)
    assert len(got) == 4000
    for who in range(8):
        assert [n for other, n in got if other == who] == list(range(500))


def test_an_error_in_a_delivery_is_logged_and_the_next_ones_go_on(caplog: pytest.LogCaptureFixture) -> None:
    got: list[int] = []

    def deliver(batch: list[int]) -> None:
        if batch == [1]:
            raise ValueError("no front end")
        got.extend(batch)

    feed: Feed[int] = Feed(deliver, 0.01)
    feed.put([1])
    until(lambda: "no front end" in caplog.text)
    feed.put([2])
    assert feed.close(30)
    assert got == [2]
    assert "no front end" in caplog.text


def test_an_idle_feed_keeps_no_thread_and_wakes_again() -> None:
    got: list[int] = []
    feed: Feed[int] = Feed(got.extend, 0.001, linger=0.02, name="idle-feed")
    assert threads("idle-feed") == 0
    feed.put([1])
    until(lambda: not threads("idle-feed"))
    assert threads("idle-feed") == 0
    feed.put([2])
    assert feed.close(30)
    assert got == [1, 2]


def test_a_poke_delivers_an_empty_batch() -> None:
    batches: list[list[int]] = []
    feed: Feed[int] = Feed(batches.append, 0.001)
    assert feed.poke()
    assert feed.close(30)
    assert batches == [[]]


def test_what_is_in_a_hurry_does_not_wait_for_the_interval() -> None:
    batches: list[list[int]] = []
    second = threading.Event()

    def deliver(batch: list[int]) -> None:
        batches.append(batch)
        if 3 in batch:
            second.set()

    feed: Feed[int] = Feed(deliver, 3600.0)
    feed.put([1])
    until(lambda: batches)
    feed.put([2])
    feed.put([3], hurry=True)
    assert second.wait(30)
    assert batches == [[1], [2, 3]]
    feed.close()
