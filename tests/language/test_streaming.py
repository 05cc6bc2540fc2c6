from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.script import Broken
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import CancelledError, GenerationError, UnknownVariableError

State = sgl.ProgramState
PiecesBefore = Callable[[type[BaseException], Iterable[str]], list[str]]
REPLY = "Grüße 🎈🎉 und 你好，世界! This is some longer text."


@sgl.function
def chat(s: State, question: str) -> str:
    s += sgl.user(question)
    s += sgl.assistant("A: " + sgl.gen("answer"))
    s += sgl.user("more") + sgl.assistant(sgl.gen("more", max_tokens=2))
    return "done"


def run(**options: Any) -> State:
    return chat.run("q?", stream=True, backend=ScriptedBackend(REPLY, token_delay=0.002), **options)


async def collect(state: State, var: str | None = None, meta: bool = False) -> list[Any]:
    return [item async for item in state.text_async_iter(var, return_meta_data=meta)]


def test_pieces_add_up_to_the_text() -> None:
    state = run()
    pieces = list(state.text_iter())
    assert len(pieces) > 3
    assert all(pieces)
    assert "".join(pieces) == state.text()
    assert state.text().startswith("<|user|>\nq?<|end|>\n<|assistant|>\nA: Grüße 🎈🎉")
    assert state.ret_value == "done"
    assert state.error() is None


def test_pieces_of_a_variable_add_up_to_it() -> None:
    state = run()
    assert "".join(state.text_iter("answer")) == REPLY == state["answer"]
    assert "".join(state.text_iter("more")) == state["more"]


def test_a_second_pass_yields_everything_again() -> None:
    state = run()
    first = "".join(state.text_iter())
    assert list(state.text_iter()) == [first]
    assert list(state.text_iter("answer")) == [REPLY]


def test_async_is_equal() -> None:
    async def both() -> None:
        state = run()
        whole, answer, more = await asyncio.gather(collect(state), collect(state, "answer"), collect(state, "more"))
        assert "".join(whole) == state.text()
        assert "".join(answer) == REPLY
        assert "".join(more) == state["more"]
        assert len(answer) > 3

    asyncio.run(both())


def test_many_async_readers_use_no_threads() -> None:
    async def many() -> int:
        state = run()
        before = threading.active_count()
        tasks = [asyncio.create_task(collect(state, "answer")) for _ in range(50)]
        await asyncio.sleep(0.01)
        during = threading.active_count()
        assert all("".join(pieces) == REPLY for pieces in await asyncio.gather(*tasks))
        return during - before

    assert asyncio.run(many()) <= 0


def test_a_cancelled_async_reader_leaves_the_rest_alone() -> None:
    async def go() -> str:
        state = run()
        task = asyncio.create_task(collect(state))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return "".join(await collect(state, "answer"))

    assert asyncio.run(go()) == REPLY


def test_meta_data_counts_every_token_once() -> None:
    state = run(return_logprob=True)
    items = asyncio.run(collect(state, "answer", meta=True))
    assert "".join(text for text, _ in items) == REPLY
    seen = 0
    for _, meta in items:
        seen += len(meta["output_token_logprobs"])
        assert meta["completion_tokens"] == seen
    final = state.get_meta_info("answer")
    assert final is not None
    assert seen == final["completion_tokens"]


def test_stream_returns_at_once() -> None:
    gate = threading.Event()
    backend = ScriptedBackend(lambda call: "slow words" if gate.wait(30) else "too late", token_delay=0.01)
    state = chat.run("q", stream=True, backend=backend)
    gate.set()
    assert next(state.text_iter("answer")) == "slow"
    assert state.text().endswith("slow words<|end|>\n")  # waits for the body too


def test_a_variable_may_be_read_before_the_body_gets_to_it() -> None:
    @sgl.function
    def late(s: State) -> None:
        time.sleep(0.05)
        s += sgl.gen("x")

    state = late.run(stream=True, backend=ScriptedBackend("there"))
    assert state["x"] == "there"
    state = late.run(stream=True, backend=ScriptedBackend("there"))
    assert "".join(state.text_iter("x")) == "there"
    for read in (lambda: state["typo"], lambda: list(state.text_iter("typo"))):
        with pytest.raises(UnknownVariableError):
            read()


def test_an_error_in_the_body_reaches_the_readers(pieces_before: PiecesBefore) -> None:
    @sgl.function
    def broken(s: State) -> None:
        s += "some text"
        s.sync()
        raise ZeroDivisionError("oops")

    state = broken.run(stream=True, backend=ScriptedBackend())
    assert pieces_before(GenerationError, state.text_iter()) == ["some text"]
    with pytest.raises(GenerationError):
        asyncio.run(collect(state))
    error = state.error()
    assert error is not None
    assert "ZeroDivisionError: oops" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert state.run.wait(30)
    assert state.run.status == "failed"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, CancelledError, asyncio.CancelledError])
def test_a_body_that_stops_by_itself_does_not_end_as_if_it_were_whole(
    stop: type[BaseException], pieces_before: PiecesBefore
) -> None:
    @sgl.function
    def program(s: State) -> None:
        s += "some text"
        s.sync()
        raise stop("enough")

    state = program.run(stream=True, backend=ScriptedBackend())
    assert pieces_before(CancelledError, state.text_iter()) == ["some text"]
    with pytest.raises(CancelledError, match=f"stopped by {stop.__name__}"):
        asyncio.run(collect(state))
    assert state.run.wait(30)
    assert state.run.status == "cancelled"


@pytest.mark.parametrize("reply", [RuntimeError("boom"), Broken("some text", RuntimeError("boom"))])
def test_a_failing_generation_reaches_the_readers(reply: Any, pieces_before: PiecesBefore) -> None:
    @sgl.function
    def program(s: State) -> None:
        s += sgl.gen("x")

    expected = reply.text if isinstance(reply, Broken) else ""
    state = program.run(stream=True, backend=ScriptedBackend(reply))
    for var in (None, "x"):
        assert "".join(pieces_before(GenerationError, state.text_iter(var))) == expected


def test_a_body_may_read_its_own_text_while_it_runs() -> None:
    @sgl.function
    def program(s: State) -> str:
        s += "a " + sgl.gen("x")
        return "".join(s.text_iter())

    for stream in (False, True):
        state = program.run(stream=stream, backend=ScriptedBackend("bc"))
        state.sync()
        assert state.ret_value == "a bc"


def test_a_state_that_was_not_streamed_iterates_too() -> None:
    state = chat.run("q?", backend=ScriptedBackend(REPLY))
    assert "".join(state.text_iter()) == state.text()
    assert "".join(asyncio.run(collect(state, "answer"))) == REPLY
