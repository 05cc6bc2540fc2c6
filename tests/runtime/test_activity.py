"""Whoever would be in an engine's way waits until it has had nothing to do for a while."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from engine_support import fake_engine, prompt
from patience import PATIENCE

from lmnb.runtime import activity
from lmnb.runtime.activity import Activity


@pytest.fixture(autouse=True)
def little_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_CALM_SECONDS", 0.3)
    monkeypatch.setattr(activity, "_POLL_SECONDS", 0.01)


def test_calm_is_some_time_without_anything_to_compute() -> None:
    state = Activity()
    state.begin()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(state.wait_until_calm, threading.Event())
        time.sleep(0.5)
        assert not waiting.done()
        ended = time.monotonic()
        state.end()
        assert waiting.result(PATIENCE)
        assert time.monotonic() - ended > 0.3


def test_calm_is_that_of_all_engines() -> None:
    state, other = Activity(), Activity()
    other.begin()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(state.wait_until_calm, threading.Event())
        time.sleep(0.5)
        assert not waiting.done()
        other.close()
        assert waiting.result(PATIENCE)
    assert not other.wait_until_calm(threading.Event())


def test_nobody_waits_for_an_engine_that_is_closed() -> None:
    state = Activity()
    state.begin()
    with ThreadPoolExecutor() as pool:
        waiting: Future[bool] = pool.submit(state.wait_until_calm, threading.Event())
        state.close()
        assert not waiting.result(PATIENCE)


def test_nobody_waits_longer_than_he_wants() -> None:
    state, give_up = Activity(), threading.Event()
    state.begin()
    give_up.set()
    assert not state.wait_until_calm(give_up)
    state.close()


def test_an_engine_is_calm_when_it_has_answered() -> None:
    with fake_engine(step_seconds=0.01) as engine, ThreadPoolExecutor() as pool:
        begun = threading.Event()
        handle = engine.submit(prompt("a", 10_000), lambda event: begun.set())
        assert begun.wait(PATIENCE)
        waiting = pool.submit(engine.activity.wait_until_calm, threading.Event())
        time.sleep(0.5)
        assert not waiting.done()
        handle.cancel()
        handle.result(PATIENCE)
        assert waiting.result(PATIENCE)
    assert not engine.activity.wait_until_calm(threading.Event())
