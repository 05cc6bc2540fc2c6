"""Answers that are none: each backend of an API says what came, and takes nothing for a finished text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stub_server import Answer, stub_server

import lmnb as sgl
from lmnb.backends.remote.anthropic_backend import Anthropic
from lmnb.backends.remote.endpoint import RuntimeEndpoint
from lmnb.backends.remote.openai_backend import OpenAI
from lmnb.errors import ArgumentError, GenerationError, RemoteError

KEY = "sk-very-secret-key"


@sgl.function
def ask(s: Any, **options: Any) -> None:
    s += sgl.user("Hi")
    s += sgl.assistant(sgl.gen("x", **options))


@sgl.function
def complete(s: Any) -> None:
    s += "Once" + sgl.gen("x") + " and " + sgl.gen("y")


@sgl.function
def choose(s: Any) -> None:
    s += "It is " + sgl.select("x", ["red", "green"])


def chunk(content: str | None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Of a chat or of a completion."""
    choice = {"index": 0, "delta": {"content": content, **delta}, "text": content, "finish_reason": finish}
    return {"id": "a", "object": "chunk", "created": 1, "model": "m", "choices": [choice]}


@contextmanager
def openai(answer: Answer, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[OpenAI]:
    monkeypatch.setenv("K", KEY)
    with (
        stub_server(lambda asked: answer) as stub,
        OpenAI("m", base_url=stub.url, api_key_env="K", max_retries=0, **options) as backend,
    ):
        yield backend


def refused(state: Any, name: str = "x") -> str:
    with pytest.raises(GenerationError) as caught:
        state[name]
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteError)
    assert cause.__cause__ is None
    assert KEY not in str(cause)
    assert KEY[:10] not in str(cause)
    return str(cause)


WHOLE = {"id": "a", "object": "chat.completion", "choices": [{"index": 0, "message": {"content": "all of it"}}]}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(events=(chunk("The answer is forty"),), broken=True), "ended before the answer did; what came before"),
        (Answer(events=(chunk("The answer is forty"),)), "ended before the answer did; what came before"),
        (Answer(events=()), "ended before the answer did; nothing of a text came"),
        (Answer(raw=b"", kind="text/event-stream"), "ended before the answer did; nothing of a text came"),
        (Answer(raw=f"<html>log in {KEY}</html>".encode()), r"no stream of events, but text/html: <html>log in \*\*\*"),
        (Answer(raw=("x" * 185 + " " + KEY).encode()), r"x \*\*\*"),
        (Answer({"error": {"message": "model not found"}}), "says: model not found"),
        (Answer({"error": "model not found"}), "says: model not found"),
        (Answer(WHOLE), "no stream of events, but application/json: .*all of it"),
        (Answer(raw=b"", kind="application/json"), "no stream of events, but application/json: nothing"),
        (Answer(raw=b"data: hello\n\n", kind="text/event-stream"), "something that is no JSON: hello"),
        (Answer(raw=b'data: "a\xff"\n\n', kind="text/event-stream"), r"no UTF-8|no JSON|unknown form"),
        (Answer(events=(None,)), "an answer of an unknown form"),
        (Answer(events=(chunk(["a"]),)), "an answer of an unknown form .*list"),  # type: ignore[arg-type]
        (Answer(events=(chunk(5),)), "an answer of an unknown form .*int"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("is_chat_model", [True, False])
def test_what_is_no_stream_is_an_error(
    answer: Answer, words: str, is_chat_model: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with openai(answer, monkeypatch, is_chat_model=is_chat_model) as backend:
        state = (ask if is_chat_model else complete).run(backend=backend)
        message = refused(state)
        assert re.search(words, message), message
        assert message.startswith("OpenAI (m) ")
        assert state.error() is not None


def test_text_that_came_before_the_break_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with openai(Answer(events=(chunk("The answer is forty"),)), monkeypatch, is_chat_model=False) as backend:
        state = complete.run(backend=backend)
        refused(state)
        assert "OnceThe answer is forty" in repr(state)


def test_speculated_calls_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @sgl.function(num_api_spec_tokens=32)
    def card(s: Any) -> None:
        s += "Name:" + sgl.gen("x", stop="\n")

    with openai(Answer(events=(chunk(" Ann"),)), monkeypatch, is_chat_model=False) as backend:
        assert "ended before the answer did" in refused(card.run(backend=backend))


def test_a_stream_under_another_name_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"data: {json.dumps(one)}\n\n" for one in (chunk("hi"), chunk("", "stop")))
    with openai(Answer(raw=lines.encode(), kind="application/json"), monkeypatch) as backend:
        assert ask.run(backend=backend)["x"] == "hi"


def test_a_refusal_keeps_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    events = (chunk(None, refusal="I can't "), chunk(None, refusal="help."), chunk(None, "stop"))
    with openai(Answer(events=events), monkeypatch) as backend:
        assert "sent a refusal in the place of an answer: I can't help." in refused(ask.run(backend=backend))


OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "said", "problem"),
    [
        (
            OBJECT,
            '{"b":2}',
            r"not of the JSON schema .* \(\$: 'a' is a required property\): \{\"b\":2\}",
        ),
        (OBJECT, '{"a":"2"}', r"\$\.a: '2' is not of type 'integer'"),
        (OBJECT, '{"a":10}', r"\$\.a: 10 is greater"),
        (OBJECT, 'Sure! {"a":2}', r"it is no JSON"),
        (OBJECT, "", r"it is no JSON"),
        (LIST, '{"value":[1,"x"]}', r"\$\[1\]: 'x' is not of type 'integer'"),
        ({"$ref": "#/$defs/A", "$defs": {"A": OBJECT}}, '{"value":{"b":2}}', r"not of the JSON schema"),
    ],
)
def test_an_answer_of_another_schema(
    schema: dict[str, Any], said: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with openai(Answer(events=(chunk(said), chunk("", "stop"))), monkeypatch) as backend:
        assert re.search(problem, refused(ask.run(backend=backend, json_schema=schema)))


def test_an_answer_that_a_limit_cut_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with openai(Answer(events=(chunk('{"a":'), chunk("", "length"))), monkeypatch) as backend:
        state = ask.run(backend=backend, json_schema=OBJECT)
        assert state["x"] == '{"a":'
        assert state.get_meta_info("x")["finish_reason"]["type"] == "length"  # type: ignore[index]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (OBJECT, ' {"a": 2}\n'),
        ({"type": "object", "properties": {"a": {"pattern": "(?<n>a)\\p{L}"}}}, '{"a":"x"}'),  # of another dialect
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/x.json"}}}, '{"a":"x"}'),
    ],
)
def test_an_answer_of_the_schema(schema: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with openai(Answer(events=(chunk(said), chunk("", "stop"))), monkeypatch) as backend:
        state = ask.run(backend=backend, json_schema=schema)
        assert state["x"] == said


def test_an_answer_that_a_stop_may_have_cut_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with openai(Answer(events=(chunk('{"a":'), chunk("", "stop"))), monkeypatch) as backend:
        assert ask.run(backend=backend, json_schema=OBJECT, stop="2")["x"] == '{"a":'


def test_values_and_choices_of_a_chat_api(monkeypatch: pytest.MonkeyPatch) -> None:
    with openai(Answer(events=(chunk('{"value": "re'),)), monkeypatch) as backend:
        assert "ended before the answer did" in refused(choose.run(backend=backend))
        assert "ended before the answer did" in refused(ask.run(backend=backend, dtype=int))


@pytest.mark.filterwarnings("ignore:.*choices_method has no say")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(raw=b"<html>log in</html>"), "sent no completion: <html>log in</html>"),
        (Answer({"error": {"message": "model not found"}}), "says: model not found"),
        (Answer({"choices": []}), "has no choices"),
        (Answer({"choices": [{"text": 5}], "usage": None}), "an answer of an unknown form"),
        (Answer(raw=b"", kind="application/json"), "sent no completion: nothing"),
        (Answer(None), "sent no completion: null"),
    ],
)
@pytest.mark.parametrize("server", ["openai", "vllm"])
def test_completions_that_are_no_streams(
    answer: Answer, words: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmnb.runtime.testing import ByteTokenizer

    with openai(answer, monkeypatch, is_chat_model=False, server=server, tokenizer=ByteTokenizer()) as backend:
        assert words in refused(choose.run(backend=backend))


START = {"type": "message_start", "message": {"id": "1", "usage": {"input_tokens": 3, "output_tokens": 0}}}
PIECE = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "The answer is"}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(events=(START, PIECE), named=True), "ended before the answer did; what came before"),
        (Answer(events=(), named=True), "nothing of a text came"),
        (Answer(raw=b"<html>log in</html>"), "no stream of events, but text/html: <html>log in</html>"),
        (Answer({"error": {"message": "no such model"}}), "says: no such model"),
    ],
)
def test_anthropic(answer: Answer, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with stub_server(lambda asked: answer) as stub, Anthropic("m", base_url=stub.url, max_retries=0) as backend:
        assert words in refused(ask.run(backend=backend))


@contextmanager
def endpoint(rule: Callable[[str], Answer]) -> Iterator[RuntimeEndpoint]:
    def answer(asked: Any) -> Answer:
        return Answer({"model_path": "m"}) if asked.path == "/get_model_info" else rule(asked.path)

    with stub_server(answer) as stub, RuntimeEndpoint(stub.url, KEY, retries=0) as backend:
        yield backend


NONSENSE = [
    Answer(raw=b"", kind="application/json"),
    Answer(None),
    Answer([]),
    Answer(5),
    Answer({"text": "hi"}),
    Answer({"text": "hi", "meta_info": {"prompt_tokens": "x"}}),
    Answer({"text": "hi", "meta_info": {"prompt_tokens": float("nan")}}),
    Answer(
        {"text": "hi", "meta_info": {"prompt_tokens": 3, "input_token_logprobs": [[float("nan"), float("nan"), "a"]]}}
    ),
    Answer(raw=f"<html>log in {KEY}</html>".encode()),
]


@pytest.mark.parametrize("answer", NONSENSE)
def test_a_choice_by_a_server_that_answers_nonsense(answer: Answer) -> None:
    with endpoint(lambda path: answer) as backend:
        message = refused(choose.run(backend=backend))
        assert message.startswith("the server at http://127.0.0.1:")
        assert " sent " in message


@pytest.mark.parametrize(
    "answer",
    [
        *NONSENSE,
        Answer(raw=b"data: hello\n\n", kind="text/event-stream"),
        Answer(raw=b'data: {"text": "a', kind="text/event-stream"),
        Answer(events=(None,)),
        Answer(events=({"text": 5, "meta_info": {}},)),
        Answer(events=({"text": "a", "meta_info": {"completion_tokens": "many"}},)),
        Answer(events=({"text": "a", "meta_info": {"finish_reason": "stop"}},)),
    ],
)
def test_a_generation_by_a_server_that_answers_nonsense(answer: Answer) -> None:
    with endpoint(lambda path: answer) as backend:
        message = refused(complete.run(backend=backend))
        assert message.startswith("the server at http://127.0.0.1:")
        assert " sent " in message


def test_a_server_that_ignores_the_schema() -> None:
    def says(text: str, reason: str = "stop") -> Answer:
        return Answer(events=({"text": text, "meta_info": {"finish_reason": {"type": reason}}},))

    with endpoint(lambda path: says('{"b":2}')) as backend:
        assert "not of the JSON schema" in refused(ask.run(backend=backend, json_schema=OBJECT))
    for answer in (says('{"a": 2}'), says('{"a"', "length")):
        with endpoint(lambda path, answer=answer: answer) as backend:  # type: ignore[misc]
            assert ask.run(backend=backend, json_schema=OBJECT)["x"] == answer.events[0]["text"]  # type: ignore[index]


def test_an_error_with_status_200_keeps_its_words() -> None:
    with endpoint(lambda path: Answer({"error": {"message": f"bad {KEY}"}})) as backend:
        assert "says: bad ***" in refused(choose.run(backend=backend))
        assert "says: bad ***" in refused(complete.run(backend=backend))


def test_half_a_character_becomes_a_sign_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes in two pieces is whole."""
    events = (chunk("a\ud800b \ud83d"), chunk("\ude00 \ud83d"), chunk("", "stop"))
    with openai(Answer(events=events), monkeypatch, is_chat_model=False) as backend:
        state = complete.run(backend=backend)
        assert state["x"] == state["y"] == "a\ufffdb \U0001f600 \ufffd"
        assert state.text() == f"Once{state['x']} and {state['y']}"
        streamed = complete.run(backend=backend, stream=True)
        assert "".join(streamed.text_iter("x")) == state["x"]
        streamed.sync()
    meta = {"finish_reason": {"type": "stop"}, "completion_tokens": 1, "prompt_tokens": 1}
    with endpoint(lambda path: Answer(events=({"text": "a\ud800b", "meta_info": meta},))) as remote:
        state = complete.run(backend=remote)
        assert state["x"] == state["y"] == "a\ufffdb"
        assert state.text() == "Oncea\ufffdb and a\ufffdb"


@pytest.mark.parametrize("url", [5, None, "", "ftp://x", "http://", "localhost:30000", "http://x:99999", "http://[::1"])
def test_addresses_that_are_none(url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with pytest.raises(ArgumentError, match="address"):
        RuntimeEndpoint(url)
    if url:
        with pytest.raises(ArgumentError, match="address"):
            OpenAI("m", base_url=url)
        with pytest.raises(ArgumentError, match="address"):
            Anthropic("m", base_url=url)


def test_whether_it_chats_is_true_or_false() -> None:
    with pytest.raises(ArgumentError, match="is_chat_model must be True, False or None, not 'x'"):
        OpenAI("m", is_chat_model="x", base_url="http://127.0.0.1:1")  # type: ignore[arg-type]


def test_a_certificate_that_is_not_there() -> None:
    with pytest.raises(ArgumentError, match=r"/no/such\.pem"):
        RuntimeEndpoint("http://127.0.0.1:1", verify="/no/such.pem")
