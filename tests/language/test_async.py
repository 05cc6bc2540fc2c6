"""Programs that are coroutines, and reading from coroutines: under any loop, and with no thread for each branch."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.script import Broken
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import CancelledError, GenerationError, ProgramError, UnknownVariableError
from lmnb.language import open_state
from lmnb.language.events import GenStarted

State = sgl.ProgramState


@sgl.function
async def ask(s: State, question: str, style: str = "plain") -> str:
    s += sgl.user(f"{question} {style}")
    s += sgl.assistant(sgl.gen("x"))
    answer = await s.get("x")
    s += sgl.user("Sure?") + sgl.assistant(sgl.gen("sure"))
    return f"{answer}!"


@sgl.function
def plain(s: State, question: str) -> str:
    s += question + sgl.gen("x")
    return s["x"] + "!"


def test_arun_awaits_it_all(backend: ScriptedBackend) -> None:
    async def main() -> tuple[State, State]:
        return await ask.arun("q", style="s"), await plain.arun("q")

    one, two = asyncio.run(main())
    assert (one.ret_value, two.ret_value) == ("ok!", "ok!")
    assert "sure" in one
    assert (
        backend.prompts()[1]
        == "<|user|>\nq s<|end|>\n<|assistant|>\nok<|end|>\n<|user|>\nSure?<|end|>\n<|assistant|>\n"
    )
    assert [state.run.wait(30) and state.run.status for state in (one, two)] == ["done", "done"]


def test_the_loop_goes_on_meanwhile() -> None:
    go_on = threading.Event()

    class Waiting(ScriptedBackend):
        def new_context(self) -> Any:
            context = super().new_context()
            generate = context.generate

            async def late(*args: Any, **rest: Any) -> Any:
                while not go_on.is_set():
                    await asyncio.sleep(0.005)
                return await generate(*args, **rest)

            context.generate = late  # type: ignore[method-assign]
            return context

    backend = Waiting("a b c")

    async def main() -> list[Any]:
        runs: list[sgl.Run] = []
        forget = sgl.on_run(runs.append)
        jobs = [asyncio.create_task(ask.arun(str(i), backend=backend)) for i in range(8)]
        jobs += [asyncio.create_task(plain.arun(str(i), backend=backend)) for i in range(4)]
        while sum(isinstance(event, GenStarted) for run in runs for event in run.events) < len(jobs):
            await asyncio.sleep(0.005)  # all of them wait at the same time
        forget()
        go_on.set()
        return [state.ret_value for state in await asyncio.gather(*jobs)]

    assert asyncio.run(main()) == ["a b c!"] * 12


def test_plain_calls_work_with_and_without_a_running_loop(backend: ScriptedBackend) -> None:
    assert ask.run("q").ret_value == "ok!"
    assert ask("q", style="s")["sure"] == "ok"

    async def cell() -> State:
        return ask.run("q")  # what a notebook's cell does: its loop runs, and is not to be touched

    assert asyncio.run(cell()).ret_value == "ok!"


def test_errors_and_arguments(backend: ScriptedBackend) -> None:
    @sgl.function
    async def fails(s: State) -> None:
        s += sgl.gen("x")
        raise ZeroDivisionError("in the body")

    for call in (lambda: fails.run(), lambda: asyncio.run(fails.arun())):  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError):
            call()
    with pytest.raises(ProgramError, match=r"ask\.arun"):
        asyncio.run(ask.arun("q", temprature=1))
    broken = ScriptedBackend(Broken("part ", OSError("gone")))

    async def main() -> None:
        state = await plain.bind(question="q").arun(backend=broken, stream=True)
        with pytest.raises(GenerationError) as caught:
            await state.get("x")
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(GenerationError):
            await state
        await state.settled()
        with pytest.raises(UnknownVariableError):
            await state.get("nope")

    asyncio.run(main())


@pytest.mark.parametrize("program", [ask, plain])
def test_streams_are_read_while_the_body_runs(program: Any) -> None:
    backend = ScriptedBackend("some words to read", token_delay=0.005)

    async def main() -> None:
        state = await program.arun("q", backend=backend, stream=True)

        async def read_all() -> str:
            return "".join([piece async for piece in state])

        reader = asyncio.create_task(read_all())
        pieces = [piece async for piece in state.text_async_iter("x")]
        assert len(pieces) > 2
        assert "".join(pieces) == await state.get("x") == "some words to read"
        assert await state is state
        assert await reader == state.text()
        assert state.ret_value == "some words to read!"

    asyncio.run(main())


def test_waiting_on_the_bodys_own_loop_is_refused_and_not_a_deadlock() -> None:
    async def main() -> None:
        state = await ask.arun("q", backend=ScriptedBackend("a b", token_delay=0.01), stream=True)
        for read in (state.text, lambda: state["x"], lambda: next(state.text_iter())):
            with pytest.raises(ProgramError, match="await"):
                read()
        assert await state.get("sure") == "a b"

    asyncio.run(main())


def test_tasks_of_the_body_are_a_part_of_it(backend: ScriptedBackend) -> None:
    @sgl.function
    async def program(s: State) -> list[str]:
        group = s.fork(3)

        async def branch(index: int) -> str:
            group[index] += f"{index}" + sgl.gen("x")
            await s  # not the end of the body, which waits for this
            return str(await group[index].get("x"))

        texts = await asyncio.gather(*(branch(index) for index in range(3)))
        await group.join_async()
        s += "".join(s["x"])
        return list(texts)

    async def main() -> None:
        state = await program.arun(stream=True)
        assert await state.get("x") == ["ok"] * 3
        await state.settled()
        assert state.ret_value == ["ok"] * 3

    asyncio.run(main())
    assert program.run().text() == "okokok"


def test_cancelling_the_task_cancels_the_run() -> None:
    backend = ScriptedBackend("w " * 3000, token_delay=0.01)
    states: list[State] = []

    @sgl.function
    async def program(s: State) -> None:
        states.append(s)
        s += sgl.gen("x", max_tokens=3000)
        await s.get("x")

    async def main() -> None:
        for target in (program, plain.bind(question="q")):
            task = asyncio.create_task(target.arun(backend=backend, max_new_tokens=3000))
            calls = len(backend.calls)
            while len(backend.calls) == calls:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert states[0].run.wait(30)
    assert states[0].run.status == "cancelled"
    meta = states[0].get_meta_info("x")
    assert meta is not None
    assert meta["finish_reason"]["type"] == "cancelled"
    with pytest.raises(CancelledError):
        states[0].sync()


def test_it_joins_the_run_whose_body_awaits_it(backend: ScriptedBackend) -> None:
    @sgl.function
    async def outer(s: State) -> list[str]:
        inner = await asyncio.gather(ask.arun("a"), plain.arun("b"))
        assert {state.run for state in inner} == {s.run}
        return [state["x"] for state in inner]

    assert outer.run().ret_value == ["ok", "ok"]


def test_methods_and_batches(backend: ScriptedBackend) -> None:
    class Judge:
        name = "j:"

        @sgl.function
        async def judge(self, s: State, essay: str) -> str:
            s += self.name + essay + sgl.gen("x")
            if essay == "bad":
                raise ValueError(essay)
            return str(await s.get("x"))

    before = threading.active_count()
    states = Judge().judge.run_batch([("a",), ("bad",), *((str(i),) for i in range(60))], num_threads=40)
    assert isinstance(states, list)
    assert [state.error() is None for state in states[:3]] == [True, False, True]
    assert states[0].text() == "j:aok"
    assert threading.active_count() <= before + 2

    async def cell() -> int:
        return len(list(ask.run_batch([("a",), ("b",)], generator_style=True)))

    assert asyncio.run(cell()) == 2


def test_a_thousand_live_branches_need_no_threads() -> None:
    s = open_state(ScriptedBackend("a b c d", token_delay=0.02))
    s += "shared"
    before = threading.active_count()
    group = s.fork(1000)
    group += sgl.gen("x")

    async def main() -> list[str]:
        texts = asyncio.gather(*(state.get("x") for state in group))
        await asyncio.sleep(0.05)
        assert threading.active_count() <= before + 1
        return list(await texts)

    assert asyncio.run(main()) == ["a b c d"] * 1000
    group.join()
    assert len(s["x"]) == 1000
