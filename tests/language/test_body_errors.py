"""A body that raises: whoever reads what it has left behind learns why, wherever it ran."""

from __future__ import annotations

from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import CancelledError, GenerationError
from lmnb.language import open_state
from lmnb.language.events import BranchFinished

State = sgl.ProgramState
WORDS = " ".join(f"w{i}" for i in range(400))


@pytest.fixture
def slow() -> ScriptedBackend:
    return ScriptedBackend(WORDS, token_delay=0.01)


def readers(s: State, name: str = "v") -> list[Any]:
    return [lambda: s[name], s.text, s.messages, s.sync, lambda: list(s.text_iter()), lambda: list(s.text_iter(name))]


def check_readers(s: State) -> None:
    for read in readers(s):
        with pytest.raises(GenerationError, match="ValueError: boom") as caught:
            read()
        assert isinstance(caught.value.__cause__, ValueError)
    assert isinstance(s.error(), GenerationError)


def test_a_run_that_is_finished_with_an_error_tells_it_to_readers(slow: ScriptedBackend) -> None:
    s = open_state(slow)
    s += sgl.gen("v", max_tokens=300)
    s.run.finish(ValueError("boom"))
    check_readers(s)


def test_rows_whose_body_raises_tell_it_whether_or_not_they_began(slow: ScriptedBackend) -> None:
    @sgl.function
    def program(s: State, begin: bool) -> None:
        if begin:
            s += sgl.gen("v", max_tokens=300)
        raise ValueError("boom")

    states = list(program.run_batch([{"begin": True}, {"begin": False}], backend=slow))
    for s in states:
        check_readers(s)
    rows = program.map([(True,), (False,)], backend=slow, progress_bar=False)
    assert ["v" in row and row["v"] for row in rows] in ([False, False], [None, None])
    assert all("boom" in row["error"] for row in rows)


def test_branches_and_calls_below_tell_the_error_of_the_body_above(slow: ScriptedBackend) -> None:
    left: list[State] = []

    @sgl.function
    def inner(s: State) -> None:
        s += sgl.gen("v", max_tokens=300)

    @sgl.function
    def outer(s: State) -> None:
        for branch in s.fork(2):
            branch += sgl.gen("v", max_tokens=300)
            left.append(branch)
        left.append(inner.run())
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        outer.run(backend=slow)
    assert len(left) == 3
    for s in left:
        check_readers(s)
    run = left[0].run
    assert run.wait(30)
    ends = [event for event in run.events if isinstance(event, BranchFinished)]
    assert len(ends) == 4
    assert {event.status for event in ends} == {"failed"}
    assert all("boom" in str(event.error) for event in ends)


def test_a_stopped_run_is_still_a_cancel(slow: ScriptedBackend) -> None:
    s = open_state(slow)
    s += sgl.gen("v", max_tokens=300)
    next(s.text_iter("v"))
    s.run.finish(KeyboardInterrupt())
    assert isinstance(s.error(), CancelledError)
    assert WORDS.startswith(s["v"])
    assert s.text() == s["v"]
    with pytest.raises(CancelledError):
        s["never"]
