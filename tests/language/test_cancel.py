"""Stopping a run: by `cancel`, and by a real interrupt while the main thread waits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from patience import until

import lmnb as sgl
from lmnb.backends.base import CancelToken
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import CancelledError, GenerationError
from lmnb.language import open_state
from lmnb.language.events import BranchFinished, GenFinished, RunFinished, TokensGenerated
from lmnb.language.variables import Variable

State = sgl.ProgramState
WORDS = " ".join(f"w{i}" for i in range(400))


def slow(**options: object) -> ScriptedBackend:
    return ScriptedBackend({"x": WORDS, "y": "never"}, token_delay=0.01, **options)  # type: ignore[arg-type]


def has_tokens(run: sgl.Run) -> bool:
    return any(isinstance(event, TokensGenerated) for event in run.events)


def wait_for_tokens(s: State) -> None:
    until(lambda: has_tokens(s.run))


def test_cancel_keeps_the_partial_text_and_marks_it() -> None:
    s = open_state(slow())
    s += sgl.user("q")
    s += sgl.assistant("A: " + sgl.gen("x", max_tokens=400))
    s += sgl.user("next") + sgl.assistant(sgl.gen("y"))
    wait_for_tokens(s)
    s.run.cancel()
    partial = s["x"]
    assert WORDS.startswith(partial)
    assert 0 < len(partial) < len(WORDS)
    meta = s.get_meta_info("x")
    assert meta is not None
    assert meta["finish_reason"] == {"type": "cancelled"}
    assert s.text() == "<|user|>\nq<|end|>\n<|assistant|>\nA: " + partial
    assert s.messages() == [{"role": "user", "content": "q"}]
    assert "".join(s.text_iter()) == s.text()
    assert "".join(s.text_iter("x")) == partial
    for read in (lambda: s["y"], s.sync, lambda: list(s.text_iter("y"))):
        with pytest.raises(CancelledError):
            read()
    assert isinstance(s.error(), CancelledError)
    s.run.finish()
    assert s.run.status == "cancelled"
    assert s.run.error is None
    (end,) = [event for event in s.run.events if isinstance(event, GenFinished)]
    assert end.finish_reason == "cancelled"
    assert [event.status for event in s.run.events if isinstance(event, (BranchFinished, RunFinished))] == [
        "cancelled",
        "cancelled",
    ]


def test_a_cancelled_value_is_not_said_to_need_more_tokens() -> None:
    value = Variable.ready("x", "12", {"finish_reason": {"type": "cancelled"}})
    value.read = str
    with pytest.raises(
        GenerationError, match=r"incomplete \(cancelled\).*; run it again, or read its text: '12'"
    ) as caught:
        value.typed()
    assert "max_tokens" not in str(caught.value)


def test_appending_to_a_cancelled_state_raises_where_it_is_read() -> None:
    s = open_state(slow())
    s += sgl.gen("x", max_tokens=400)
    s.run.cancel()
    s.run.finish()
    assert s.run.wait(30)
    before = s.text()
    s += "more" + sgl.gen("z")
    with pytest.raises(CancelledError):
        s["z"]
    with pytest.raises(CancelledError):
        s.fork(2).join()
    assert s.text() == before


def test_one_cancel_stops_every_branch() -> None:
    s = open_state(slow())
    group = s.fork(5)
    group += sgl.gen("x", max_tokens=400) + sgl.gen("y")
    wait_for_tokens(s)
    s.run.cancel()
    with pytest.raises(CancelledError):
        group.join()
    assert all(len(branch["x"]) < len(WORDS) for branch in group)
    s.run.finish()
    assert s.run.status == "cancelled"
    assert [event.status for event in s.run.events if isinstance(event, BranchFinished)].count("cancelled") == 5


def test_what_finished_before_the_cancel_is_done() -> None:
    s = open_state(ScriptedBackend("quick"))
    s += sgl.gen("x")
    assert s.text() == "quick"
    s.run.cancel()
    assert s["x"] == "quick"
    assert s.error() is None
    s += "after the cancel"
    with pytest.raises(CancelledError):
        s.sync()


def test_a_select_is_cancelled_too() -> None:
    reached = threading.Event()

    class Waiting(ScriptedBackend):
        def new_context(self) -> Any:
            context = super().new_context()

            async def score(choices: Any, *, cancel: CancelToken, **_: Any) -> Any:
                reached.set()
                while not cancel.cancelled:
                    await asyncio.sleep(0.005)
                raise RuntimeError("stopped")

            context.score = score  # type: ignore[method-assign]
            return context

    s = open_state(Waiting())
    s += "p" + sgl.select("x", ["a", "b"])
    assert reached.wait(30)
    s.run.cancel()
    with pytest.raises(CancelledError):
        s["x"]


def test_cancelling_a_streamed_run_ends_its_body() -> None:
    @sgl.function
    def program(s: State) -> None:
        s += sgl.gen("x", max_tokens=400)
        s["x"]
        s += sgl.gen("y")
        s["y"]

    state = program.run(stream=True, backend=slow())
    for piece in state.text_iter():
        assert piece
        state.run.cancel()
    assert state.run.wait(30)
    assert state.run.status == "cancelled"
    assert WORDS.startswith(state.text())


def test_a_body_that_raises_stops_what_it_started() -> None:
    states: list[State] = []

    @sgl.function
    def program(s: State) -> None:
        states.append(s)
        s += sgl.gen("x", max_tokens=400)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program.run(backend=slow())
    assert states[0].run.wait(30)
    assert states[0].run.status == "failed"
    assert isinstance(states[0].run.error, ZeroDivisionError)


def interrupt_when(begun: Callable[[], bool]) -> None:
    """Send the main thread a real signal a moment after that, so that it waits by then."""

    def interrupt() -> None:
        until(begun)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()


@pytest.mark.parametrize("wait_on", ["variable", "text", "run_batch"])
def test_an_interrupt_ends_a_wait_in_the_main_thread(wait_on: str) -> None:
    backend = slow()

    @sgl.function
    def program(s: State) -> None:
        s += sgl.gen("x", max_tokens=400)
        if wait_on == "variable":
            s["x"]

    assert threading.current_thread() is threading.main_thread()
    runs: list[sgl.Run] = []
    forget = sgl.on_run(runs.append)
    interrupt_when(lambda: bool(runs) and has_tokens(runs[0]))
    waits: dict[str, Callable[[], object]] = {
        "variable": lambda: program.run(backend=backend),
        "text": lambda: program.run(backend=backend).text(),
        "run_batch": lambda: program.run_batch([{}] * 3, backend=backend),
    }
    with pytest.raises(KeyboardInterrupt):
        waits[wait_on]()
    forget()
    (run,) = runs
    assert run.wait(30)
    assert run.status == "cancelled"
    ends = [event for event in run.events if isinstance(event, GenFinished)]
    assert {end.finish_reason for end in ends} == {"cancelled"}


def test_an_interrupt_leaves_a_background_run_alone() -> None:
    s = open_state(slow(), background_run=True)
    s += sgl.gen("x", max_tokens=100)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the signal must not come before
        interrupt_when(lambda: has_tokens(s.run))
        s["x"]
    assert "x" not in s
    assert s["x"] == " ".join(WORDS.split()[:100])


def test_an_interrupt_in_a_process_of_its_own() -> None:
    code = textwrap.dedent(
        """
        import lmnb as sgl
        from lmnb.backends.testing import ScriptedBackend
        from lmnb.language import open_state

        s = open_state(ScriptedBackend("word " * 2000, token_delay=0.01))
        s += sgl.gen("x", max_tokens=2000)
        print(next(s.text_iter()), flush=True)
        try:
            s["x"]
        except KeyboardInterrupt:
            s.run.finish()
            print(s.run.status, 0 < len(s["x"]) < 2000 * 5)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "word\n"
    time.sleep(0.1)  # it has told so just before it waits
    os.kill(child.pid, signal.SIGINT)
    out, _ = child.communicate(timeout=30)
    assert (out, child.returncode) == ("cancelled True\n", 0)
