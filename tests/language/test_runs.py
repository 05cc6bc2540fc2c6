from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.base import Owner
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import GenerationError, ProgramError, UnknownVariableError
from lmnb.language import current_run, open_state
from lmnb.language.events import (
    BranchFinished,
    BranchOpened,
    GenStarted,
    RoleOpened,
    RunEvent,
    RunFinished,
    RunStarted,
    TextAppended,
    TokensGenerated,
    from_json,
    to_json,
)

State = sgl.ProgramState


@sgl.function
def judge(s: State, essay: str) -> str:
    s += "Judge " + essay + ": "
    s += sgl.gen("verdict")
    return "returned"


def test_every_event_survives_json(backend: ScriptedBackend) -> None:
    s = open_state(backend, cell="3")
    s += sgl.user("q" + sgl.gen("x", regex="a*")) + sgl.select("pick", ["a", "b"])
    group = s.fork(2)
    group += sgl.gen("y")
    group.join()
    s.run.finish()
    kinds = {event.type for event in s.run.events}
    assert kinds == {
        "run", "branch", "role", "role_end", "text", "gen", "tokens", "gen_end", "choice", "var", "join",
        "branch_end", "run_end",
    }  # fmt: skip
    assert all(from_json(to_json(event)) == event for event in s.run.events)


def test_text_of_a_branch_can_be_rebuilt_from_events(backend: ScriptedBackend) -> None:
    s = open_state(backend)
    s += sgl.system("be kind") + sgl.user("q") + sgl.assistant("a " + sgl.gen("x"))
    s.run.finish()
    text = ""
    for event in s.run.events:
        if isinstance(event, (TextAppended, TokensGenerated)):
            text += event.text
        elif isinstance(event, RoleOpened):
            text += event.prefix
        elif event.type == "role_end":
            text += event.suffix  # type: ignore[union-attr]
    assert text == s.text()


def test_a_late_subscriber_gets_everything_once_and_in_order() -> None:
    s = open_state(ScriptedBackend("a b c d e f g h", token_delay=0.003))
    s += "start " + sgl.gen("x") + sgl.gen("y")
    heard: list[list[RunEvent]] = []
    threads: set[str] = set()
    for _ in range(8):
        mine: list[RunEvent] = []
        heard.append(mine)

        def note(event: RunEvent, mine: list[RunEvent] = mine) -> None:
            threads.add(threading.current_thread().name)
            mine.append(event)

        s.run.subscribe(note)
        time.sleep(0.005)
    s.run.finish()
    assert all(tuple(events) == s.run.events for events in heard)
    assert threads == {"lmnb-loop"}
    after: list[RunEvent] = []
    s.run.subscribe(after.append)  # to a finished run
    assert tuple(after) == s.run.events


def test_a_subscription_can_end_and_a_broken_one_harms_nobody(
    backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    s = open_state(backend)
    heard: list[RunEvent] = []
    end = s.run.subscribe(heard.append)

    def broken(event: RunEvent) -> None:
        raise ValueError("view bug")

    s.run.subscribe(broken)
    s += "a"
    s.sync()
    end()
    s += "b"
    assert s.text() == "ab"
    assert [event.text for event in heard if isinstance(event, TextAppended)] == ["a"]
    assert "view bug" in caplog.text


def test_a_run_tells_its_story(backend: ScriptedBackend) -> None:
    state = judge.run("cats")
    state.run.wait(30)
    first, *_, end, last = state.run.events
    assert isinstance(first, RunStarted)
    assert (first.run, first.program, first.model, first.cell) == (state.run.id, "judge", "scripted", None)
    assert end == BranchFinished(0, "done")
    assert isinstance(last, RunFinished)
    assert (last.status, last.error) == ("done", None)


def test_owner_and_line(backend: ScriptedBackend) -> None:
    s = open_state(backend, cell="7")
    here = inspect.currentframe()
    assert here is not None
    s += sgl.gen("x")
    line = here.f_lineno - 1
    group = s.fork(2)
    group[1] += sgl.select("y", ["a"])
    with s.user():
        s += sgl.gen()
    s.run.finish()
    group[1].sync()
    owners = {call.owner.var: call.owner for call in backend.calls if call.owner}
    assert owners["x"] == Owner(s.run.id, "cell", "7", "0", None, "x", line, 's += sgl.gen("x")')
    chosen = 'group[1] += sgl.select("y", ["a"])'
    assert owners["y"] == Owner(s.run.id, "cell", "7", "0.1", None, "y", line + 3, chosen)
    assert owners[None].line == line + 5
    lines = [event.line for event in s.run.events if isinstance(event, GenStarted)]
    assert sorted(filter(None, lines)) == [line, line + 3, line + 5]


def test_on_run_tells_of_top_level_runs_only(backend: ScriptedBackend) -> None:
    runs: list[sgl.Run] = []
    forget = sgl.on_run(runs.append)

    @sgl.function
    def outer(s: State) -> None:
        s += judge.run("a")["verdict"]
        judge.run_batch([("b",), ("c",)])

    state = outer.run()
    assert runs == [state.run]
    forget()
    outer.run().sync()
    assert len(runs) == 1


def test_calls_inside_a_cell_join_its_run(backend: ScriptedBackend) -> None:
    s = open_state(backend, cell="4")
    with s.run.active():
        assert current_run() is s.run
        s += "cell text"
        one = judge.run("a")
        rows = judge.run_batch([("b",), ("c",)])
    assert current_run() is None
    assert one.run is rows[0].run is s.run  # type: ignore[index]
    s.run.finish()
    opened = [event for event in s.run.events if isinstance(event, BranchOpened)]
    assert [(e.parent, e.program, e.row, e.index) for e in opened] == [
        (0, "judge", None, 0),
        (0, "judge", 0, 0),
        (0, "judge", 1, 1),
    ]
    assert opened[0].fork != opened[1].fork == opened[2].fork
    assert one.text() == "Judge a: ok"
    owners = [call.owner for call in backend.calls if call.owner]
    assert {(o.program, o.cell, o.row) for o in owners} == {("judge", "4", row) for row in (None, 0, 1)}
    assert len([event for event in s.run.events if isinstance(event, BranchFinished)]) == 4
    assert s.run.status == "done"


def test_programs_inside_programs_hang_below_their_caller(backend: ScriptedBackend) -> None:
    @sgl.function
    def outer(s: State) -> None:
        s += judge.run("a")["verdict"]

    s = open_state(backend)
    with s.run.active():
        outer.run()
    s.run.finish()
    opened = [event for event in s.run.events if isinstance(event, BranchOpened)]
    assert [(e.branch, e.parent, e.program) for e in opened] == [(1, 0, "outer"), (2, 1, "judge")]


def test_one_cancel_stops_what_joined_and_calls_fail_apart() -> None:
    backend = ScriptedBackend(lambda call: ValueError("x") if "bad" in call.prompt else "fine")
    s = open_state(backend)
    with s.run.active():
        with pytest.raises(GenerationError):
            judge.run("bad")["verdict"]
        assert judge.run("good")["verdict"] == "fine"
    s += "still " + sgl.gen("x")
    assert s["x"] == "fine"
    s.run.finish()
    assert s.run.status == "done"

    slow = ScriptedBackend("w " * 500, token_delay=0.01)
    s = open_state(slow)
    with s.run.active():
        states = [judge.run("a", max_new_tokens=500) for _ in range(3)]
        for state in states:
            next(state.text_iter("verdict"))
    s.run.cancel()
    s.run.finish()
    assert s.run.wait(30)
    assert s.run.status == "cancelled"
    metas = [state.get_meta_info("verdict") or {} for state in states]
    assert [meta["finish_reason"] for meta in metas] == [{"type": "cancelled"}] * 3


def test_a_joined_call_uses_the_runs_backend(backend: ScriptedBackend) -> None:
    other = ScriptedBackend("other")
    s = open_state(other)
    with s.run.active():
        assert judge.run("a")["verdict"] == "other"
        assert judge.run("a", backend=backend)["verdict"] == "ok"
    s.run.finish()


def test_finish_reports_the_bodys_error(backend: ScriptedBackend) -> None:
    s = open_state(backend)
    s += "x"
    error = ZeroDivisionError("oops")
    s.run.finish(error)
    assert (s.run.status, s.run.error) == ("failed", error)
    last = s.run.events[-1]
    assert isinstance(last, RunFinished)
    assert last.error == "oops"
    s.run.finish()  # again: nothing changes
    assert s.run.events[-1] is last
    interrupted = open_state(backend)
    interrupted.run.finish(KeyboardInterrupt())
    assert interrupted.run.status == "cancelled"


def test_finish_waits_for_branches_that_nobody_reads() -> None:
    s = open_state(ScriptedBackend("a b c", token_delay=0.02))
    group = s.fork(2)
    group += sgl.gen("x")
    s.run.finish()
    assert s.run.status == "done"
    assert all("x" in branch for branch in group)


def test_finish_does_not_hang_on_a_backend_that_ignores_a_cancel() -> None:
    release, reached = threading.Event(), threading.Event()

    class Deaf(ScriptedBackend):
        def new_context(self) -> Any:
            context = super().new_context()

            async def generate(*args: Any, **kwargs: Any) -> Any:
                reached.set()
                while not release.is_set():
                    await asyncio.sleep(0.01)
                raise RuntimeError("late")

            context.generate = generate  # type: ignore[method-assign]
            return context

    s = open_state(Deaf())
    s += sgl.gen("x")
    assert reached.wait(30)
    s.run.cancel()
    s.run.finish()
    assert s.run.status == "running"
    release.set()
    assert s.run.wait(30)
    assert [event.status for event in s.run.events if isinstance(event, RunFinished)] == ["cancelled"]


def test_a_finished_state_goes_on_in_a_run_of_its_own(backend: ScriptedBackend) -> None:
    runs: list[sgl.Run] = []
    forget = sgl.on_run(runs.append)
    state = judge.run("a")
    state.run.wait(30)
    before = state.run
    events = before.events
    state["note"] = "set"  # is not worth a run
    state += " plain"
    assert state.text() == "Judge a: ok plain"
    assert runs == [before]
    state += sgl.gen("more")
    assert state["more"] == "ok"
    assert before.events == events
    assert state.run is runs[-1]
    assert state.run is not before
    assert state.run.wait(30)
    assert state.run.status == "done"
    forget()


def test_a_finished_state_joins_the_cell_in_which_it_goes_on(backend: ScriptedBackend) -> None:
    state = judge.run("a")
    state.run.wait(30)
    s = open_state(backend)
    with s.run.active():
        state += sgl.gen("more")
        assert state["more"] == "ok"
    assert state.run is s.run
    s.run.finish()
    (opened,) = [event for event in s.run.events if isinstance(event, BranchOpened)]
    assert opened.program == "judge"


def test_a_background_body_is_waited_for() -> None:
    s = open_state(ScriptedBackend("said"), background_run=True)
    go = threading.Event()
    caught: list[BaseException] = []

    def body() -> None:
        with s.run.active():
            go.wait(30)
            s.__iadd__("first " + sgl.gen("x"))
            caught.append(KeyError(s["x"] + s.text()))  # within the body only what was appended is waited for
            s.__iadd__(" last")
        s.run.finish()

    thread = threading.Thread(target=body)
    threading.Timer(0.05, go.set).start()
    pieces = s.text_iter()
    thread.start()
    assert s["x"] == "said"
    assert s.text() == "first said last"
    assert "".join(pieces) == "first said last"
    assert caught[0].args == ("saidfirst said",)
    thread.join(30)
    assert s.run.status == "done"
    with pytest.raises(UnknownVariableError):
        s["nothing"]


def test_continue_from(backend: ScriptedBackend) -> None:
    first = open_state(backend, cell="1")
    first += sgl.user("q1") + sgl.assistant(sgl.gen("a1"))
    first.run.finish()
    second = open_state(backend, cell="2", continue_from=first)
    second += sgl.user("q2 " + second["a1"]) + sgl.assistant(sgl.gen("a2"))
    assert second.text() == first.text() + "<|user|>\nq2 ok<|end|>\n<|assistant|>\nok<|end|>\n"
    assert len(second.messages()) == 4
    assert "a2" not in first
    assert len(first.messages()) == 2
    second.run.finish()
    assert second.run is not first.run
    assert backend.prompts()[1].startswith(first.text())


def test_continue_from_a_cancelled_state_closes_the_cut_turn() -> None:
    backend = ScriptedBackend({"a1": "w " * 300, "a2": "fine"}, token_delay=0.005)
    first = open_state(backend)
    first += sgl.user("q1") + sgl.assistant(sgl.gen("a1", max_tokens=300))
    next(first.text_iter("a1"))
    first.run.cancel()
    first.run.finish()
    assert first.run.wait(30)
    second = open_state(backend, continue_from=first)
    second += sgl.user("q2") + sgl.assistant(sgl.gen("a2"))
    assert second["a2"] == "fine"
    assert [message["role"] for message in second.messages()] == ["user", "assistant", "user", "assistant"]
    assert second.text().startswith(first.text() + "<|end|>\n")
    second.run.finish()


def test_continue_from_what_cannot_be_continued(backend: ScriptedBackend) -> None:
    failed = open_state(ScriptedBackend(OSError("x")))
    failed += sgl.gen("x")
    with pytest.raises(GenerationError):
        open_state(failed.stream.backend, continue_from=failed)
    fine = open_state(backend)
    with pytest.raises(ProgramError, match="same model"):
        open_state(ScriptedBackend(name="other"), continue_from=fine)
    empty = open_state(backend, continue_from=fine)
    empty += "x"
    assert empty.text() == "x"
