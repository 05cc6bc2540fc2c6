"""After a failure nothing waits forever, nothing is lost silently, and what was made before is still there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.script import Broken
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import CancelledError, GenerationError, ProgramError, TemplateError, UnknownVariableError
from lmnb.language import open_state
from lmnb.language.events import BranchFinished, GenFinished, RunFinished
from lmnb.language.loop import background

State = sgl.ProgramState
PiecesBefore = Callable[[type[BaseException], Iterable[str]], list[str]]


@pytest.fixture
def failed() -> State:
    s = open_state(ScriptedBackend({"good": "fine", "bad": ValueError("no memory"), "": "later"}))
    s += "start " + sgl.gen("good")
    s += sgl.gen("bad")
    s += sgl.gen("after") + "tail"
    return s


READS: dict[str, Callable[[State], Any]] = {
    "the variable": lambda s: s["bad"],
    "a later variable": lambda s: s["after"],
    "its meta data": lambda s: s.get_meta_info("bad"),
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "sync": lambda s: s.sync(),
    "text_iter": lambda s: list(s.text_iter()),
    "text_iter of the variable": lambda s: list(s.text_iter("bad")),
    "text_iter of a later variable": lambda s: list(s.text_iter("after")),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_read_raises_with_the_cause(failed: State, read: Callable[[State], Any]) -> None:
    for _ in range(2):  # again: the same
        with pytest.raises(
            GenerationError, match=r"gen\('bad'\) at line [0-9]+ failed: ValueError: no memory"
        ) as caught:
            read(failed)
        assert isinstance(caught.value.__cause__, ValueError)


def test_what_was_made_before_is_still_there(failed: State) -> None:
    error = failed.error()
    assert isinstance(error, GenerationError)
    assert isinstance(error.__cause__, ValueError)
    assert failed["good"] == "fine"
    assert failed.text_so_far == "start fine"
    assert "bad" not in failed
    assert repr(failed) == "ProgramState('start fine')"


def test_text_iter_yields_what_came_before_it_raises(failed: State, pieces_before: PiecesBefore) -> None:
    assert "".join(pieces_before(GenerationError, failed.text_iter())) == "start fine"


def test_later_steps_are_not_executed(failed: State) -> None:
    failed.error()
    backend = failed.stream.backend
    assert isinstance(backend, ScriptedBackend)
    assert [call.owner.var for call in backend.calls if call.owner] == ["good", "bad"]


def test_appending_after_a_failure_raises_where_it_is_read(failed: State) -> None:
    failed.error()
    failed += "more " + sgl.gen("more")
    with failed.user():
        failed += "x"
    with failed.var_scope("scope"):
        failed += "y"
    failed["mine"] = 1
    assert failed["mine"] == 1
    for read in (lambda: failed["more"], lambda: failed["scope"], failed.text, failed.fork(2).join):
        with pytest.raises(GenerationError, match="no memory"):
            read()


def test_a_generation_that_breaks_off_keeps_its_text_but_has_no_value(pieces_before: PiecesBefore) -> None:
    s = open_state(ScriptedBackend(Broken("once upon", OSError("line dropped"))))
    s += "S: " + sgl.gen("x")
    assert "".join(pieces_before(GenerationError, s.text_iter("x"))) == "once upon"
    assert s.text_so_far == "S: once upon"
    with pytest.raises(GenerationError):
        s["x"]


def test_a_scope_that_fails_inside_has_no_value() -> None:
    s = open_state(ScriptedBackend(OSError("x")))
    with s.var_scope("v"):
        s += "a" + sgl.gen("x")
    with pytest.raises(GenerationError):
        s["v"]


def test_a_template_error_is_a_step_error() -> None:
    class Strict(ScriptedBackend):
        def new_context(self) -> Any:
            context = super().new_context()
            begin = context.begin_role

            def begin_role(role: str) -> str:
                if role == "system":
                    raise TemplateError("this template has no system turn")
                return begin(role)

            context.begin_role = begin_role  # type: ignore[method-assign]
            return context

    s = open_state(Strict())
    s += sgl.system("x") + sgl.user("y")
    with pytest.raises(GenerationError, match=r"system at line [0-9]+ failed") as caught:
        s.sync()
    assert isinstance(caught.value.__cause__, TemplateError)


def test_a_backend_that_cannot_make_a_context_is_a_step_error(backend: ScriptedBackend) -> None:
    def broken() -> Any:
        raise OSError("gone")

    backend.new_context = broken  # type: ignore[method-assign]
    s = open_state(backend)
    s += "x"
    with pytest.raises(GenerationError, match="gone"):
        s.text()


def test_the_program_goes_on_when_it_catches_the_error() -> None:
    @sgl.function
    def program(s: State) -> str:
        s += "a "
        branch = s.fork(1)[0]
        branch += sgl.gen("bad")
        try:
            return str(branch["bad"])
        except GenerationError:
            s += sgl.gen("good")
            return str(s["good"])

    state = program.run(backend=ScriptedBackend({"bad": OSError("x"), "good": "fine"}))
    assert state.ret_value == "fine"
    assert state.error() is None


def test_an_uncaught_read_error_leaves_run(backend: ScriptedBackend) -> None:
    @sgl.function
    def program(s: State) -> None:
        s += sgl.gen("x")
        s["x"]

    with pytest.raises(GenerationError) as caught:
        program.run(backend=ScriptedBackend(OSError("x")))
    assert isinstance(caught.value.__cause__, OSError)


def test_events_of_a_failure(failed: State) -> None:
    failed.run.finish()
    ends = [event for event in failed.run.events if isinstance(event, GenFinished)]
    assert [event.finish_reason for event in ends] == ["stop", "error"]
    (branch,) = [event for event in failed.run.events if isinstance(event, BranchFinished)]
    last = failed.run.events[-1]
    assert isinstance(last, RunFinished)
    assert branch.status == last.status == failed.run.status == "failed"
    assert "no memory" in (branch.error or "")
    assert "no memory" in (last.error or "")
    assert isinstance(failed.run.error, GenerationError)


def test_waiting_on_the_loops_own_thread_is_refused(failed: State) -> None:
    s = open_state(ScriptedBackend("x", token_delay=0.05))
    s += sgl.gen("x")

    def read() -> str:
        with pytest.raises(ProgramError, match="very thread"):
            s["x"]
        return "refused"

    assert background.call(read) == "refused"
    assert s["x"] == "x"


def test_a_stopped_loop_fails_readers_and_starts_again() -> None:
    s = open_state(ScriptedBackend("never ends " * 100, token_delay=0.05))
    s += sgl.gen("x") + sgl.gen("y")
    caught: list[BaseException] = []

    def read() -> None:
        try:
            s["y"]
        except CancelledError as error:
            caught.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    background.stop()
    reader.join(30)
    assert "loop was stopped" in str(caught[0])
    fresh = open_state(ScriptedBackend("again"))
    fresh += sgl.gen("x")
    assert fresh["x"] == "again"


def test_unknown_names_in_text_iter(failed: State) -> None:
    with pytest.raises(UnknownVariableError):
        list(failed.text_iter("nope"))
