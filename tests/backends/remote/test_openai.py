"""`OpenAI` through the vendor's SDK: on `lmnb serve`, and on a server that records what it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from context_support import fake_runtime
from server_support import fake_server
from stub_server import Answer, Asked, stub_server

import lmnb as sgl
from lmnb.backends.remote.openai_backend import OpenAI
from lmnb.errors import ArgumentError, GenerationError, RemoteError
from lmnb.runtime.testing import ByteTokenizer
from lmnb.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server() as made:
        yield made


def model(at: Server, /, **options: Any) -> OpenAI:
    return OpenAI("fake", base_url=at.url + "/v1", **{"server": "sglang", **options})


PLAIN = "[a-z ]+"  # what the fake model says otherwise is often half a character


@sgl.function
def plain_chat(s: Any) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user("Why?")
    s += sgl.assistant(sgl.gen("a", max_tokens=8))
    s += sgl.user("And?")
    s += sgl.assistant(sgl.gen("b", max_tokens=4))


@sgl.function
def chat(s: Any) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user("Why?")
    s += sgl.assistant(sgl.gen("a", max_tokens=8, regex=PLAIN))
    s += sgl.user("And?")
    s += sgl.assistant(sgl.gen("b", max_tokens=4, regex=PLAIN))


@sgl.function
def complete(s: Any, **options: Any) -> None:
    s += "Once upon" + sgl.gen("x", max_tokens=8, **options)


def test_chat_says_what_the_local_engine_says(server: Server) -> None:
    with model(server) as backend, fake_runtime() as local:
        here = chat.run(temperature=0, backend=local)
        there = chat.run(temperature=0, backend=backend)
        assert (there["a"], there["b"]) == (here["a"], here["b"])
        assert there.messages() == here.messages()
        meta = there.get_meta_info("b")
        assert meta is not None
        assert meta["completion_tokens"] == 4
        assert meta["finish_reason"]["type"] == "length"
        assert meta["cached_tokens"] > 0
        assert backend.token_usage.calls == 2


def test_completions_say_what_the_local_engine_says(server: Server) -> None:
    with model(server, is_chat_model=False, chat_template="chatml") as backend, fake_runtime() as local:
        options = {"temperature": 0, "seed": 4, "top_k": 3}
        here, there = complete.run(**options, backend=local), complete.run(**options, backend=backend)
        assert there.text() == here.text()
        streamed = complete.run(**options, backend=backend, stream=True)
        assert "".join(streamed.text_iter("x")) == here["x"]


def test_logprobs(server: Server) -> None:
    with model(server, is_chat_model=False) as completion, model(server) as chatting:
        for backend in (completion, chatting):

            @sgl.function
            def ask(s: Any) -> None:
                s += sgl.user("?")
                s += sgl.assistant(sgl.gen("x", max_tokens=5, return_logprob=True, top_logprobs_num=2))

            meta = ask.run(temperature=0, backend=backend).get_meta_info("x")
            assert meta is not None
            assert len(meta["output_token_logprobs"]) == 5
            assert all(entry[0] < 0 and entry[1] < 0 for entry in meta["output_token_logprobs"])
            # Tokens that read alike are one entry in a completion's answer.
            assert all(top[0][0] <= 0 and len(top) in (1, 2) for top in meta["output_top_logprobs"])


def test_a_schema_becomes_a_response_format(server: Server) -> None:
    with model(server, server="openai") as backend:

        @sgl.function
        def ask(s: Any) -> None:
            s += sgl.user("?")
            s += sgl.assistant(sgl.gen("x", json_schema='{"enum": ["red", "green"]}'))

        state = ask.run(temperature=0, backend=backend)
        assert state["x"] in ('"red"', '"green"')
        meta = state.get_meta_info("x")
        assert meta is not None
        assert meta["constraint"] == "json_schema by response_format"


def test_what_cannot_be_enforced_is_refused(server: Server) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"regex": "a+"}, "regex.*json_schema"),
        ({"top_k": 3}, "top_k"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"stop_regex": "a"}, "stop_regex"),
    ]
    with model(server, server="openai") as backend:
        for options, words in cases:

            @sgl.function
            def ask(s: Any, given: Any) -> None:
                s += sgl.user("?")
                s += sgl.assistant(sgl.gen("x", **given))

            with pytest.raises(GenerationError, match=words):
                ask.run(options, backend=backend)["x"]
        assert "refuses" in repr(backend)
        assert "regex" in repr(backend).partition("refuses")[2]


def test_text_before_gen_in_a_turn(server: Server) -> None:
    @sgl.function
    def ask(s: Any) -> None:
        s += sgl.user("?")
        s += sgl.assistant("Well, " + sgl.gen("x", max_tokens=6))

    with model(server, server="openai") as plain, pytest.raises(GenerationError, match="nothing may stand before gen"):
        ask.run(backend=plain)["x"]
    with model(server) as able, fake_runtime() as local:
        assert ask.run(temperature=0, backend=able)["x"] == ask.run(temperature=0, backend=local)["x"]


@pytest.mark.parametrize(
    "method", [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized]
)
def test_select_by_echoed_logprobs(server: Server, method: Any) -> None:
    @sgl.function
    def pick(s: Any) -> None:
        s += "Answer: " + sgl.select("a", ["yes", "no", "not at all"], choices_method=method)

    with model(server, is_chat_model=False) as backend, fake_runtime() as local:
        here, there = pick.run(backend=local), pick.run(backend=backend)
        assert there["a"] == here["a"]
        ours, theirs = here.get_meta_info("a"), there.get_meta_info("a")
        assert ours is not None
        assert theirs is not None
        assert theirs["normalized_prompt_logprobs"] == pytest.approx(ours["normalized_prompt_logprobs"], abs=1e-4)


class _Choosing:
    """A completion server that goes on with `wanted`, byte by byte, within the bias that it is given."""

    def __init__(self, prompt: str, wanted: str) -> None:
        self.prompt = list(prompt.encode())
        self.wanted = wanted.encode()

    def __call__(self, asked: Asked) -> Answer:
        said = asked.json["prompt"][len(self.prompt) :]
        text = chr(self.wanted[len(said)]) if len(said) < len(self.wanted) else "."
        allowed = asked.json.get("logit_bias")
        if allowed is not None and str(ord(text)) not in allowed:
            text = chr(int(next(iter(allowed))))
        choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens": len(asked.json["prompt"]), "completion_tokens": 1, "total_tokens": 0}
        return Answer(
            {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )


@pytest.mark.filterwarnings("ignore:.*choices_method has no say")
@pytest.mark.parametrize(
    ("choices", "wanted", "calls"),
    [
        (["red", "green"], "green", 1),
        (["New York", "New"], "New", 1),
        (["New", "New York"], "New York", 1),
        (["a", "aa"], "aa", 1),
        (["aa", "a"], "a", 1),
        (["tin", "ton", "tan"], "tan", 1),
        (["one"], "one", 0),
    ],
)
def test_select_by_letting_the_model_choose(choices: list[str], wanted: str, calls: int) -> None:
    @sgl.function
    def pick(s: Any) -> None:
        s += "It is " + sgl.select("a", choices)

    with (
        stub_server(_Choosing("It is ", wanted)) as stub,
        OpenAI("m", is_chat_model=False, base_url=stub.url, tokenizer=ByteTokenizer()) as backend,
    ):
        state = pick.run(backend=backend)
        assert state["a"] == wanted
        assert len(stub.asked) == calls
        if calls:
            assert stub.asked[0].json["temperature"] == 0
            meta = state.get_meta_info("a")
            assert meta is not None
            assert max(meta["scores"]) == meta["scores"][choices.index(wanted)]


def test_the_bodies_on_the_wire() -> None:
    def rule(asked: Asked) -> Answer:
        chunk = {"id": "c", "object": "x", "created": 1, "model": "m"}
        choice = {"index": 0, "finish_reason": None, "delta": {"content": "hi"}, "text": "hi"}
        last = {"index": 0, "finish_reason": "stop", "delta": {}, "text": ""}
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        events = (
            {**chunk, "choices": [choice]},
            {**chunk, "choices": [last]},
            {**chunk, "choices": [], "usage": usage},
        )
        return Answer(events=events)

    with stub_server(rule) as stub:
        with OpenAI("m", base_url=stub.url) as backend:
            state = plain_chat.run(backend=backend)
            assert state["b"] == "hi"
            assert stub.asked[1].json == {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Why?"},
                    {"role": "assistant", "content": "hi"},
                    {"role": "user", "content": "And?"},
                ],
                "model": "m",
                "max_tokens": 4,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            assert backend.token_usage.prompt_tokens == 18
        with OpenAI("m", is_chat_model=False, base_url=stub.url, server="vllm") as backend:
            state = complete.run(backend=backend, top_k=5, stop=["\n"], temperature=0.5)
            assert state["x"] == "hi"
            assert stub.asked[2].json == {
                "model": "m",
                "prompt": "Once upon",
                "max_tokens": 8,
                "temperature": 0.5,
                "stop": ["\n"],
                "top_k": 5,
                "stream": True,
                "stream_options": {"include_usage": True},
            }


def test_keys_come_from_the_environment_and_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="OPENAI_API_KEY"):
        OpenAI("gpt-x")
    with pytest.raises(ArgumentError, match="saved with the notebook") as caught:
        OpenAI("gpt-x", api_key="sk-very-secret")
    assert "sk-very-secret" not in str(caught.value)
    monkeypatch.setenv("MY_TOKEN", "sk-very-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")

    def rule(asked: Asked) -> Answer:
        return Answer({"error": {"message": f"bad key {asked.headers.get('Authorization')}"}}, status=401)

    with stub_server(rule) as stub:
        with OpenAI("m", base_url=stub.url, api_key_env="MY_TOKEN") as backend:
            with pytest.raises(GenerationError) as failed:
                plain_chat.run(backend=backend)["a"]
            cause = failed.value.__cause__
            assert isinstance(cause, RemoteError)
            assert "bad key Bearer ***" in str(cause)
            assert cause.__cause__ is None
            shown = str(failed.value) + "".join(failed.value._render_traceback_()) + repr(backend) + repr(vars(backend))
            assert "sk-very-secret" not in shown
            assert "sk-very-secret" not in str(backend.get_server_info())
        with OpenAI("m", base_url=stub.url) as backend:  # a server of one's own is not sent OpenAI's key
            with pytest.raises(GenerationError):
                plain_chat.run(backend=backend)["a"]
            assert "sk-other" not in str(stub.asked[-1].headers)


def test_text_outside_of_turns_is_not_lost_in_silence(server: Server) -> None:
    @sgl.function
    def ask(s: Any) -> None:
        s += "A preface."
        s += sgl.user("?")
        s += sgl.assistant(sgl.gen("x"))

    with model(server) as backend, pytest.raises(GenerationError, match=r"'A preface\.' stands outside of turns"):
        ask.run(backend=backend)["x"]


def test_a_program_without_roles_is_one_user_turn(server: Server) -> None:
    with model(server) as backend, fake_runtime() as local:

        @sgl.function
        def same(s: Any) -> None:
            s += sgl.user("Once upon")
            s += sgl.assistant(sgl.gen("x", max_tokens=8))

        assert complete.run(temperature=0, backend=backend)["x"] == same.run(temperature=0, backend=local)["x"]


def test_stop_keeps_what_came() -> None:
    with fake_server(step_seconds=0.01) as server, model(server, is_chat_model=False) as backend:

        @sgl.function
        def long(s: Any) -> None:
            s += "Go on" + sgl.gen("x", max_tokens=3000, ignore_eos=True)

        state = long.run(backend=backend, stream=True)
        pieces = state.text_iter("x")
        first = next(pieces)
        state.stream.branch.run.cancel()
        text = first + "".join(pieces)
        assert state.text() == "Go on" + text
        assert len(text) < 3000


CARD = "Name: Ann Lee\nBorn: 1990\nJob: pilot\n"


def _writing(asked: Asked) -> Answer:
    """A model that writes CARD: a chat model as a whole, a completion model from wherever the prompt is in it."""
    body = asked.json
    prompt = body.get("prompt", "")
    text = next((CARD[size:] for size in range(len(CARD), 0, -1) if prompt.endswith(CARD[:size])), CARD)
    for stop in body.get("stop", []):
        text = text.partition(stop)[0]
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    chunk = {"id": "c", "object": "x", "created": 1, "model": "m"}
    told = [{"index": 0, "text": piece, "delta": {"content": piece}, "finish_reason": None} for piece in pieces]
    told.append({"index": 0, "text": "", "delta": {}, "finish_reason": "stop"})
    size = len(json.dumps(body.get("messages", prompt))) // 4
    usage = {"prompt_tokens": size, "completion_tokens": len(pieces), "total_tokens": 0}
    events = [*({**chunk, "choices": [choice]} for choice in told), {**chunk, "choices": [], "usage": usage}]
    return Answer(events=tuple(events))


def _card(s: Any) -> None:
    s += "A few examples. " * 30
    s += "Name:" + sgl.gen("name", stop="\n") + "\nBorn:" + sgl.gen("born", stop="\n") + "\nJob:"
    s += sgl.gen("job", stop="\n")


def _chat_card(s: Any) -> None:
    s += sgl.user("Write a card, please.")
    s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nBorn:" + sgl.gen("born", stop=["\n"]))


def test_speculation_over_the_wire() -> None:
    with stub_server(_writing) as stub, OpenAI("m", is_chat_model=False, base_url=stub.url) as backend:
        sent = []
        for tokens in (None, 64):
            backend.token_usage.reset()
            state = sgl.function(_card, tokens).run(backend=backend)
            assert (state["name"], state["born"], state["job"]) == (" Ann Lee", " 1990", " pilot")
            sent.append((backend.token_usage.calls, backend.token_usage.prompt_tokens))
        assert [calls for calls, _ in sent] == [3, 1]
        assert 2.9 < sent[0][1] / sent[1][1] < 3.3


def test_speculation_writes_a_chat_turn() -> None:
    with stub_server(_writing) as stub, OpenAI("m", base_url=stub.url) as backend:
        state = sgl.function(_chat_card, 64).run(backend=backend)
        assert (state["name"], state["born"]) == (" Ann Lee", " 1990")
        assert len(stub.asked) == 1
        assert stub.asked[0].json["messages"] == [{"role": "user", "content": "Write a card, please."}]
        assert stub.asked[0].json["max_tokens"] == 64
        assert "stop" not in stub.asked[0].json
        assert state.messages()[1]["content"] == "Name: Ann Lee\nBorn: 1990"
