from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, GenerationError, ProgramError
from lmnb.language.events import BranchFinished, BranchOpened
from lmnb.language.progress import Progress

State = sgl.ProgramState


@sgl.function
def ask(s: State, question: str, style: str = "plain") -> str:
    s += f"{question} {style} " + sgl.gen("x")
    return question + "!"


def test_rows_come_back_in_order_and_finished(backend: ScriptedBackend) -> None:
    rows: list[Any] = [{"question": "a"}, ("b",), ["c", "fancy"]]
    states = ask.run_batch(rows)
    assert isinstance(states, list)
    assert [state.text() for state in states] == ["a plain ok", "b plain ok", "c fancy ok"]
    assert [state.ret_value for state in states] == ["a!", "b!", "c!"]
    assert all("x" in state for state in states)
    assert rows == [{"question": "a"}, ("b",), ["c", "fancy"]]


def test_an_empty_batch(backend: ScriptedBackend) -> None:
    assert ask.run_batch([]) == []
    assert list(ask.run_batch([], generator_style=True)) == []


@pytest.mark.parametrize(
    "rows",
    [["bare text"], [("a",), ("a", "b", "c")], [{"questoin": "a"}], [()], [None]],
)
def test_rows_that_do_not_fit_stop_the_batch_before_it_starts(backend: ScriptedBackend, rows: Any) -> None:
    with pytest.raises(ProgramError, match="row"):
        ask.run_batch(rows)
    assert not backend.calls


def test_a_failing_row_stays_in_its_row() -> None:
    @sgl.function
    def program(s: State, i: int) -> int:
        if i == 1:
            raise ZeroDivisionError("in the body")
        s += f"row{i} " + sgl.gen("x")
        return len(s["x"])

    backend = ScriptedBackend(lambda call: OSError("in the backend") if "row2" in call.prompt else "ok")
    states = program.run_batch([{"i": i} for i in range(4)], backend=backend)
    assert isinstance(states, list)
    errors = [state.error() for state in states]
    assert [error is None for error in errors] == [True, False, False, True]
    assert [type(error.__cause__) for error in errors if error] == [ZeroDivisionError, OSError]
    assert [states[0]["x"], states[3]["x"]] == ["ok", "ok"]
    with pytest.raises(GenerationError, match="in the body"):
        states[1].text()
    assert states[0].run.wait(30)
    assert states[0].run.status == "done"
    ends = [event.status for event in states[0].run.events if isinstance(event, BranchFinished)]
    assert sorted(ends) == ["done", "done", "done", "failed", "failed"]


def test_rows_are_branches_of_one_run(backend: ScriptedBackend) -> None:
    states = ask.run_batch([("a",), ("b",)])
    assert isinstance(states, list)
    assert states[0].run is states[1].run
    assert states[0].run.wait(30)
    opened = [event for event in states[0].run.events if isinstance(event, BranchOpened)]
    assert [(e.parent, e.program, e.row, e.index, e.fork) for e in opened] == [(0, "ask", 0, 0, 0), (0, "ask", 1, 1, 0)]


def test_num_threads_bounds_the_rows_at_work() -> None:
    lock, meeting = threading.Lock(), threading.Barrier(3)
    now = peak = 0

    @sgl.function
    def program(s: State, i: int) -> None:
        nonlocal now, peak
        with lock:
            now += 1
            peak = max(peak, now)
        meeting.wait(30)
        s += sgl.gen("x")
        s["x"]
        with lock:
            now -= 1

    program.run_batch([(i,) for i in range(12)], num_threads=3, backend=ScriptedBackend())
    assert peak == 3
    for bad in (0, "many", 1.5):
        with pytest.raises(ArgumentError, match="num_threads"):
            program.run_batch([(1,)], num_threads=bad, backend=ScriptedBackend())


def test_rows_that_fork_and_wait_do_not_starve_each_other(backend: ScriptedBackend) -> None:
    @sgl.function
    def program(s: State, i: int) -> None:
        group = s.fork(3)
        group += lambda j: f"{i}{j}" + sgl.gen("x")
        group.join()
        s += "".join(s["x"])

    states = program.run_batch([(i,) for i in range(20)], num_threads=2)
    assert [state.text() for state in states] == ["okokok"] * 20


def test_generator_style_yields_in_order_and_stays_a_window_ahead() -> None:
    begun: list[int] = []

    @sgl.function
    def program(s: State, i: int) -> int:
        begun.append(i)
        s += sgl.gen("x")
        return i

    states = program.run_batch([(i,) for i in range(450)], backend=ScriptedBackend(), generator_style=True)
    assert isinstance(states, Iterator)
    assert next(states).ret_value == 0
    time.sleep(0.1)
    assert len(begun) <= 200
    assert [state.ret_value for state in states] == list(range(1, 450))


def test_a_generator_that_is_dropped_cancels_the_rest() -> None:
    backend = ScriptedBackend("w " * 300, token_delay=0.01)
    states = ask.run_batch(
        [(str(i),) for i in range(20)], backend=backend, generator_style=True, num_threads=4, max_new_tokens=3
    )
    assert isinstance(states, Iterator)
    first = next(states)
    states.close()  # type: ignore[attr-defined]
    assert first.run.wait(30)
    assert first["x"] == "w w w"
    assert len(backend.calls) < 20


def test_progress_bar(backend: ScriptedBackend, capsys: pytest.CaptureFixture[str]) -> None:
    ask.run_batch([("a",)] * 5, progress_bar=True)
    assert "5/5" in capsys.readouterr().err
    ask.run_batch([("a",)] * 5)
    assert capsys.readouterr().err == ""


def test_the_progress_bar_ends_complete(backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row must be counted before the batch sees that it is done, however late the counting thread is."""
    counted: list[str] = []

    def late(self: Progress, note: str) -> None:
        time.sleep(0.05)
        counted.append(note)

    monkeypatch.setattr(Progress, "count", late)
    ask.run_batch([("a",)] * 3, progress_bar=True)
    assert len(counted) == 3


@pytest.mark.parametrize("kernel", [None, object()], ids=["terminal", "notebook"])
def test_notebooks_get_the_bar_on_stdout(
    backend: ScriptedBackend,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kernel: object | None,
) -> None:
    shell = types.SimpleNamespace(kernel=kernel)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    ask.run_batch([("a",)] * 5, progress_bar=True)
    out, err = capsys.readouterr()
    assert "5/5" in (err if kernel is None else out)
    assert (out if kernel is None else err) == ""


def test_sampling_defaults_reach_every_row(backend: ScriptedBackend) -> None:
    ask.run_batch([("a",), ("b",)], temperature=0, max_new_tokens=4)
    assert {(c.params.temperature, c.params.max_new_tokens) for c in backend.calls if c.params} == {(0, 4)}
    with pytest.raises(ProgramError, match="question"):
        ask.run_batch([("a",)], question="b")
