"""Threads take short turns while an engine has something to do, and the usual ones otherwise."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest
from engine_support import end_of_warm_ups, fake_engine, prompt
from patience import PATIENCE, until

from lmnb.runtime import short_turns
from lmnb.runtime.short_turns import TURN_SECONDS, ShortTurns

USUAL = 0.004
SHORTER = 0.000005


@pytest.fixture(autouse=True)
def usual_turns() -> Iterator[None]:
    """Nobody else wants short turns: what tests before this one have begun may be at its end."""
    end_of_warm_ups()
    until(lambda: not short_turns._wanting)
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def is_short() -> bool:
    return sys.getswitchinterval() == pytest.approx(TURN_SECONDS)


def is_usual() -> bool:
    return sys.getswitchinterval() == pytest.approx(USUAL)


def test_they_are_short_as_long_as_anybody_wants_it() -> None:
    first, second = ShortTurns(), ShortTurns()
    for each in (first, second, first):
        each.begin()
        assert is_short()
    first.end()
    first.end()
    assert is_short()
    second.end()
    assert is_usual()
    with ShortTurns(), ShortTurns():
        assert is_short()
    assert is_usual()


def test_shorter_ones_are_left_alone() -> None:
    sys.setswitchinterval(SHORTER)
    with ShortTurns():
        assert sys.getswitchinterval() == pytest.approx(SHORTER)
    assert sys.getswitchinterval() == pytest.approx(SHORTER)


def test_what_somebody_else_sets_meanwhile_stays() -> None:
    with ShortTurns():
        sys.setswitchinterval(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)
    with ShortTurns():
        sys.setswitchinterval(SHORTER)
    assert sys.getswitchinterval() == pytest.approx(SHORTER)


def test_short_ones_that_somebody_else_has_kept_are_not_taken_for_the_usual() -> None:
    """As by a library that sets turns of its own for a while, and puts back what it found."""
    with ShortTurns():
        kept = sys.getswitchinterval()
    sys.setswitchinterval(kept)
    with ShortTurns():
        assert is_short()
    assert is_usual()


def test_many_threads_leave_the_usual_ones() -> None:
    def want() -> None:
        for _ in range(300):
            with ShortTurns():
                pass

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_usual()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_the_usual_ones() -> None:
    with ShortTurns():
        child = os.fork()
        if not child:
            usual = is_usual()
            with ShortTurns():
                os._exit(0 if usual and is_short() else 1)
        assert os.waitpid(child, 0)[1] == 0


class Forking(set[ShortTurns]):
    """Forks when it is changed; whether every child had the usual turns."""

    all_usual = True

    def add(self, each: ShortTurns, /) -> None:
        self.fork()
        super().add(each)

    def discard(self, each: object, /) -> None:
        super().discard(each)
        self.fork()

    def fork(self) -> None:
        child = os.fork()
        if not child:
            os._exit(0 if is_usual() else 1)
        self.all_usual &= os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_the_usual_ones_whatever_another_thread_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting = Forking()
    monkeypatch.setattr(short_turns, "_wanting", wanting)
    with ShortTurns():
        assert is_short()
    assert wanting.all_usual
    assert is_usual()


def test_an_engine_wants_them_while_it_computes() -> None:
    seen: list[bool] = []
    with fake_engine() as engine:
        assert is_usual()
        for _ in range(2):
            engine.submit(prompt("a"), lambda event: seen.append(is_short())).result()
            until(is_usual)  # nothing is left to do
    assert len(seen) > 2
    assert all(seen)


def test_an_engine_that_is_closed_at_work_wants_them_no_more() -> None:
    begun = threading.Event()
    with fake_engine(step_seconds=0.01) as engine:
        engine.submit(prompt("a", 1000), lambda event: begun.set())
        assert begun.wait(PATIENCE)
        assert is_short()
        engine.close()
        assert is_usual()
