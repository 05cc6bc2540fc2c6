"""Reasoning goes its own way: variables, text, prompt, streams; however the text is cut into pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError
from lmnb.language import open_state
from lmnb.language.reasoning import ReasoningSplitter, get_reasoning_format

State = sgl.ProgramState
THINK = "<think>\nWhat is it? 4 < 5.\n</think>\n\nIt is 4."
REASONING, ANSWER = "What is it? 4 < 5.", "It is 4."


@sgl.function
def solve(s: State, question: str, model: str = "qwen3") -> None:
    s += sgl.user(question)
    s += sgl.assistant("A: " + sgl.separate_reasoning(sgl.gen("answer"), model))
    s += sgl.user("And then?") + sgl.assistant(sgl.gen("more"))


def backend() -> ScriptedBackend:
    return ScriptedBackend({"answer": THINK, "more": "Done."}, token_delay=0.001)


@pytest.mark.parametrize("stream", [False, True])
def test_answer_and_reasoning_are_apart(stream: bool) -> None:
    made = backend()
    state = solve.run("2+2?", backend=made, stream=stream)
    assert (state["answer"], state["answer_reasoning_content"]) == (ANSWER, REASONING)
    assert state.messages()[1] == {"role": "assistant", "content": f"A: {ANSWER}"}
    assert "think" not in state.text()
    assert made.prompts()[1] == state.text().removesuffix("Done.<|end|>\n")
    meta = state.get_meta_info("answer")
    assert meta is not None
    assert meta["completion_tokens"] > len(ANSWER.split())


def test_both_can_be_read_while_they_come() -> None:
    state = solve.run("2+2?", backend=backend(), stream=True)
    assert "".join(state.text_iter("answer_reasoning_content")) == REASONING
    pieces = list(state.text_iter("answer"))
    assert len(pieces) > 2
    assert "".join(pieces) == ANSWER
    assert "".join(state.text_iter()) == state.text()

    async def read() -> str:
        other = solve.run("2+2?", backend=backend(), stream=True)
        return "".join([piece async for piece in other.text_async_iter("answer_reasoning_content")])

    assert asyncio.run(read()) == REASONING


def test_samples_and_choices() -> None:
    s = open_state(ScriptedBackend(["<think>a</think>1", "2"], score=lambda prompt, choice: [-len(choice)]))
    s += "p" + sgl.separate_reasoning(sgl.gen("x", n=2) + "|" + sgl.select("y", ["long", "b"]), "qwen3")
    assert (s["x"], s["x_reasoning_content"]) == (["1", "2"], ["a", ""])
    assert (s["y"], s["y_reasoning_content"]) == ("b", "")
    assert s.text() == "p1|b"


def test_a_cut_generation_keeps_what_there_is() -> None:
    state = solve.run("2+2?", backend=backend(), stream=True, max_new_tokens=5)
    assert state["answer"] == ""
    assert state["answer_reasoning_content"]
    assert REASONING.startswith(state["answer_reasoning_content"])


def test_a_format_of_ones_own() -> None:
    sgl.register_reasoning_format("mine", sgl.ReasoningFormat("[[", "]]"))
    assert get_reasoning_format("Mine").split("[[ a ]] b") == ("a", "b")
    with pytest.raises(ArgumentError, match="mine"):
        get_reasoning_format("other")
    with pytest.raises(ArgumentError):
        sgl.ReasoningFormat("", "x")
    with pytest.raises(ArgumentError):
        sgl.register_reasoning_format("bad", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "text", "parts"),
    [
        ("qwen3", "No tags.", ("", "No tags.")),
        ("qwen3", "  indented", ("", "  indented")),
        ("qwen3", "<thin", ("", "<thin")),
        ("qwen3", "<think>never ends", ("never ends", "")),
        ("qwen3", "<think></think>\n\nx", ("", "x")),
        ("deepseek-r1", "from the start</think>x", ("from the start", "x")),
        ("deepseek-r1", "<think>\ntag too\n</think>x\n", ("tag too", "x\n")),
        ("deepseek-r1", "<thi", ("", "")),
        ("kimi", "◁think▷a◁/think▷b", ("a", "b")),
    ],
)
def test_formats(model: str, text: str, parts: tuple[str, str]) -> None:
    assert get_reasoning_format(model).split(text) == parts


def cuts(text: str, sizes: list[int]) -> Iterator[str]:
    at = 0
    for size in sizes:
        yield text[at : at + size]
        at += size
    yield text[at:]


@given(
    st.sampled_from(["qwen3", "deepseek-r1"]),
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", " ", "\n", "a", "b c"]), max_size=8).map("".join),
    st.lists(st.integers(1, 5), max_size=12),
)
@example("qwen3", "<think> a </think> b", [1] * 10)
def test_pieces_do_not_matter(model: str, text: str, sizes: list[int]) -> None:
    form = get_reasoning_format(model)
    splitter = ReasoningSplitter(form)
    parts = [splitter.feed(piece) for piece in cuts(text, sizes)] + [splitter.finish()]
    assert ("".join(r for r, _ in parts), "".join(a for _, a in parts)) == form.split(text)
