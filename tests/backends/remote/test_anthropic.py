"""`Anthropic` through the vendor's SDK, on a server that records what it is sent and answers as theirs does."""

from __future__ import annotations

from typing import Any

import pytest
from stub_server import Answer, Asked, stub_server

import lmnb as sgl
from lmnb.backends.remote.anthropic_backend import Anthropic
from lmnb.errors import ArgumentError, GenerationError

USAGE = {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 0}


def said(*pieces: str, reason: str = "end_turn", matched: str | None = None) -> Answer:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude-x",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE,
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    for piece in pieces:
        delta = {"type": "text_delta", "text": piece}
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    ending = {"stop_reason": reason, "stop_sequence": matched}
    events += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": len(pieces)}},
        {"type": "message_stop"},
    ]
    return Answer(events=tuple(events), named=True)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")


@sgl.function
def talk(s: Any) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user("Why?")
    s += sgl.assistant(sgl.gen("a", max_tokens=8, stop="END"))
    s += sgl.user("And?")
    s += sgl.assistant("Well, " + sgl.gen("b", max_tokens=4, temperature=0.5, top_k=3))


def test_a_talk_keeps_its_system_turn() -> None:
    with stub_server(lambda _: said("Be", "cause", reason="stop_sequence", matched="END")) as stub:
        with Anthropic("claude-x", base_url=stub.url) as backend:
            state = talk.run(backend=backend)
            assert state["b"] == "Because"
            meta = state.get_meta_info("a")
            assert meta is not None
            assert meta["finish_reason"] == {"type": "stop", "matched": "END"}
            assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (12, 7, 2)
            assert state.messages()[0] == {"role": "system", "content": "Be brief."}
        assert [asked.path for asked in stub.asked] == ["/v1/messages"] * 2
        assert stub.asked[0].json == {
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "Why?"}],
            "model": "claude-x",
            "stop_sequences": ["END"],
            "stream": True,
            "system": "Be brief.",
        }
        assert stub.asked[1].json == {
            "max_tokens": 4,
            "messages": [
                {"role": "user", "content": "Why?"},
                {"role": "assistant", "content": "Because"},
                {"role": "user", "content": "And?"},
                {"role": "assistant", "content": "Well, "},
            ],
            "model": "claude-x",
            "stream": True,
            "system": "Be brief.",
            "temperature": 0.5,
            "top_k": 3,
        }


def test_a_schema_becomes_an_output_format() -> None:
    with stub_server(lambda _: said("1")) as stub, Anthropic("claude-x", base_url=stub.url) as backend:

        @sgl.function
        def ask(s: Any) -> None:
            s += "A number?" + sgl.gen("x", json_schema='{"type": "integer"}')

        state = ask.run(backend=backend)
        assert state["x"] == "1"
        assert stub.asked[0].json["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "integer"}}}
        assert stub.asked[0].json["messages"] == [{"role": "user", "content": "A number?"}]
        meta = state.get_meta_info("x")
        assert meta is not None
        assert meta["constraint"] == "json_schema by output_config"


def test_what_it_has_not_is_refused() -> None:
    with stub_server(lambda _: said("x")) as stub, Anthropic("claude-x", base_url=stub.url) as backend:
        for options, word in (
            ({"regex": "a+"}, "regex"),
            ({"return_logprob": True}, "log-prob"),
            ({"seed": 1}, "seed"),
        ):

            @sgl.function
            def ask(s: Any, given: Any) -> None:
                s += "?" + sgl.gen("x", **given)

            with pytest.raises(GenerationError, match=word):
                ask.run(options, backend=backend)["x"]
        assert stub.asked == []


def test_errors_have_the_servers_words_and_not_the_key() -> None:
    def rule(asked: Asked) -> Answer:
        told = f"credit of {asked.headers.get('X-Api-Key') or asked.headers.get('Authorization')} is too low"
        return Answer({"type": "error", "error": {"type": "invalid_request_error", "message": told}}, status=400)

    with stub_server(rule) as stub, Anthropic("claude-x", base_url=stub.url) as backend:
        with pytest.raises(GenerationError, match=r"\*\*\* is too low") as caught:
            talk.run(backend=backend)["a"]
        shown = "".join(caught.value._render_traceback_()) + repr(backend) + str(backend.get_server_info())
        assert "sk-ant-secret" not in shown


def test_a_refusal_of_the_model_is_an_error() -> None:
    with (
        stub_server(lambda _: said("I", reason="refusal")) as stub,
        Anthropic("claude-x", base_url=stub.url) as backend,
        pytest.raises(GenerationError, match="'refusal'"),
    ):
        talk.run(backend=backend)["a"]


def test_no_key_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ArgumentError, match="ANTHROPIC_API_KEY"):
        Anthropic("claude-x")
