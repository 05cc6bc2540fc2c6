"""`s.tokens()`: the tokens that the model saw, and where each came from."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from context_support import fake_runtime
from small_tokenizers import KINDS, small_tokenizer

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ProgramError
from lmnb.language import open_state

State = sgl.ProgramState


@sgl.function
def chat(s: State, question: str) -> None:
    s += sgl.user(question) + sgl.assistant("A: " + sgl.gen("x", max_tokens=5))


def spans(state: State) -> list[tuple[str, str]]:
    return [
        (source, "".join(token.text for token in group))
        for source, group in groupby(state.tokens(), key=lambda token: token.source)
    ]


def test_tokens_and_sources() -> None:
    backend = ScriptedBackend("Fine, <thanks>.")
    state = chat.run("How are you?", backend=backend)
    assert spans(state) == [
        ("template", "<|user|>\n"),
        ("given", "How are you?"),
        ("template", "<|end|>\n<|assistant|>\n"),
        ("given", "A: "),
        ("generated", "Fine, <thanks"),
        ("template", "<|end|>\n"),
    ]
    tokens = state.tokens()
    assert tokens.text == state.text()
    assert str(tokens).startswith("<|||user|")
    assert [backend.token_text(token.id) for token in tokens] == [token.text for token in tokens]
    shown = tokens._repr_html_()
    assert "&lt;</span>" in shown
    assert "↵" in shown
    assert "generated" in shown


def test_forks_and_joins_keep_the_sources() -> None:
    s = open_state(ScriptedBackend("ok"))
    assert s.tokens() == []
    s += "p "
    group = s.fork(2)
    group += ["a ", "b "]
    group += sgl.gen("x")
    assert spans(group[1]) == [("given", "p b "), ("generated", "ok")]
    group.join("concate_and_append")
    assert spans(s) == [("given", "p a "), ("generated", "ok"), ("given", "b "), ("generated", "ok")]


def test_a_backend_without_tokens_says_so() -> None:
    backend = ScriptedBackend()
    backend.capabilities = replace(backend.capabilities, token_lens=False)
    with pytest.raises(ProgramError, match="Runtime"):
        chat.run("q", backend=backend).tokens()


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_engine_the_tokens_are_the_prompt(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    with fake_runtime(tokenizer, chat_template="chatml") as runtime:
        state = chat.run("Wie geht's dir, 世界 😀?", backend=runtime, temperature=0)
        tokens = state.tokens()
        context: Any = state.stream.context
        assert tuple(token.id for token in tokens) == context.token_ids
        given = "".join(token.text for token in tokens if token.source == "given")
        assert "dir" in given
        assert "im_start" not in given
        kinds = [source for source, _ in spans(state)]
        assert kinds[:4] == ["template", "given", "template", "given"]
        assert kinds[-1] == "template"
        if state["x"]:
            assert "generated" in kinds


def test_every_token_has_a_source_after_any_appends() -> None:
    with fake_runtime(small_tokenizer("gpt2"), chat_template="chatml") as runtime:
        s = open_state(runtime)
        for piece in ("Hel", "lo wor", "ld", "<|im_", "end|>", " and", " more"):
            s += piece
        assert s.tokens().text.endswith("and more")
        assert {token.source for token in s.tokens()} == {"given"}
        child = s.fork(1)[0]
        child += sgl.gen("x", max_tokens=3, temperature=0, ignore_eos=True)
        child += "tail"
        assert [source for source, _ in spans(child)] == ["given", "generated", "given"]
