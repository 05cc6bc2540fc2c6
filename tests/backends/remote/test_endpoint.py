"""`RuntimeEndpoint` on a real server: programs behave as on the local engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from context_support import fake_runtime
from patience import until
from server_support import fake_server

import lmnb as sgl
from lmnb.backends.base import CancelToken, Owner
from lmnb.backends.remote.endpoint import RuntimeEndpoint
from lmnb.backends.remote.endpoint_context import EndpointContext
from lmnb.errors import GenerationError, RemoteError
from lmnb.runtime.request import Constraint, SamplingParams
from lmnb.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server() as made:
        yield made


@pytest.fixture
def endpoint(server: Server) -> Iterator[RuntimeEndpoint]:
    server.runtime.flush_cache()
    with RuntimeEndpoint(server.url, chat_template_name="chatml") as made:
        yield made


def greedy(**options: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": 8, **options}


@sgl.function
def chat(s: Any, question: str) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", stop="z"))


def test_the_same_text_as_on_the_local_engine(endpoint: RuntimeEndpoint) -> None:
    with fake_runtime() as local:
        here = chat.run("Why?", **greedy(), backend=local)
        there = chat.run("Why?", **greedy(), backend=endpoint)
        assert there.text() == here.text()
        assert there["answer"] == here["answer"]
        meta, other = there.get_meta_info("answer"), here.get_meta_info("answer")
        assert meta is not None
        assert other is not None
        for key in ("prompt_tokens", "completion_tokens", "finish_reason"):
            assert meta[key] == other[key]


def test_streaming(endpoint: RuntimeEndpoint) -> None:
    state = chat.run("Stream?", **greedy(), backend=endpoint, stream=True)
    pieces = list(state.text_iter("answer"))
    assert "".join(pieces) == state["answer"]


def test_a_fork_finds_its_prefix_in_the_servers_cache(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def tips(s: Any) -> None:
        s += "A prefix that all branches share: "
        branches = s.fork(3)
        for index, branch in enumerate(branches):
            branch += f"{index}:" + sgl.gen("tip")
        branches.join()

    state = tips.run(**greedy(), backend=endpoint)
    assert len(state["tip"]) == 3
    assert endpoint.token_usage.calls == 4  # the hint, and three branches


@pytest.mark.parametrize(
    "method",
    [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized],
)
def test_select_scores_as_the_local_engine_does(endpoint: RuntimeEndpoint, method: Any) -> None:
    @sgl.function
    def pick(s: Any) -> None:
        s += "Answer: " + sgl.select("a", ["yes", "no", "not at all"], choices_method=method)

    with fake_runtime() as local:
        here, there = pick.run(backend=local), pick.run(backend=endpoint)
        assert there["a"] == here["a"]
        ours, theirs = here.get_meta_info("a"), there.get_meta_info("a")
        assert ours is not None
        assert theirs is not None
        assert theirs["normalized_prompt_logprobs"] == pytest.approx(ours["normalized_prompt_logprobs"], abs=1e-4)
        texts = ["".join(entry[2] for entry in row) for row in theirs["input_token_logprobs"]]
        assert texts == ["yes", "no", "not at all"]


def test_select_on_an_empty_prompt(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def pick(s: Any) -> None:
        s += sgl.select("a", ["xx", "y"])

    assert pick.run(backend=endpoint)["a"] in ("xx", "y")


def test_regex_and_schema_are_enforced(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def constrained(s: Any) -> None:
        s += sgl.gen("year", regex="(19|20)[0-9]{2}")
        s += sgl.gen("object", json_schema='{"type": "boolean"}')

    state = constrained.run(**greedy(max_new_tokens=32), backend=endpoint)
    assert state["year"][:2] in ("19", "20")
    assert len(state["year"]) == 4
    assert state["object"] in ("true", "false")


def test_logprobs(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def ask(s: Any) -> None:
        s += "abc" + sgl.gen(
            "x", return_logprob=True, top_logprobs_num=2, logprob_start_len=0, return_text_in_logprobs=True
        )

    meta = ask.run(**greedy(), backend=endpoint).get_meta_info("x")
    assert meta is not None
    assert [entry[2] for entry in meta["input_token_logprobs"]] == ["a", "b", "c"]
    assert meta["input_token_logprobs"][0][0] is None
    assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == 8
    assert all(len(top) == 2 for top in meta["output_top_logprobs"])


def test_rows_again_and_again_also_after_a_row_that_fails(endpoint: RuntimeEndpoint) -> None:
    rows = [{"question": f"Why {index}?"} for index in range(64)]
    first = [state["answer"] for state in chat.run_batch(rows, **greedy(), backend=endpoint)]
    assert [state["answer"] for state in chat.run_batch(rows, **greedy(), backend=endpoint)] == first
    failing = chat.run_batch([{"question": "x" * 5000}, *rows[:3]], **greedy(), backend=endpoint)
    assert isinstance(failing[0].error(), GenerationError)
    assert [state["answer"] for state in failing[1:]] == first[:3]
    assert [state["answer"] for state in chat.run_batch(rows, **greedy(), backend=endpoint)] == first


def test_the_servers_message_reaches_the_reader(endpoint: RuntimeEndpoint) -> None:
    state = chat.run("x" * 5000, backend=endpoint)
    with pytest.raises(GenerationError) as caught:
        state["answer"]
    assert isinstance(caught.value.__cause__, RemoteError)
    assert "more than the model's context" in str(caught.value.__cause__)


def test_stop_ends_the_generation_on_the_server() -> None:
    with fake_server(step_seconds=0.01) as server, RuntimeEndpoint(server.url) as endpoint:

        @sgl.function
        def long(s: Any) -> None:
            s += "Go on" + sgl.gen("x", max_tokens=3000, ignore_eos=True)

        state = long.run(backend=endpoint, stream=True)
        pieces = state.text_iter("x")
        first = next(pieces)
        state.stream.branch.run.cancel()
        text = first + "".join(pieces)
        assert state.text() == "Go on" + text
        until(lambda: not server.runtime.status().running)
        assert server.runtime.status().running == 0


def test_flush_and_information(endpoint: RuntimeEndpoint) -> None:
    assert endpoint.flush_cache() is True
    info = sgl.get_server_info(endpoint)
    assert info["chat_template"] == "chatml"
    assert info["capabilities"]["select"] == "scored"
    assert "select: scored" in repr(endpoint)


def test_the_tokenizers_own_template_comes_over_the_wire(server: Server) -> None:
    with RuntimeEndpoint(server.url) as endpoint, fake_runtime() as local:
        assert "chat template: tokenizer (the server's tokenizer)" in repr(endpoint)
        assert endpoint.stop == local.stop == ("<|im_end|>",)
        assert (
            chat.run("Why?", **greedy(), backend=endpoint).text() == chat.run("Why?", **greedy(), backend=local).text()
        )
    with fake_server(chat_template="llama-3-instruct") as other, RuntimeEndpoint(other.url) as endpoint:
        assert endpoint.chat_template.name == "llama-3-instruct"


def test_no_server_is_told() -> None:
    with pytest.raises(RemoteError, match="cannot be reached"):
        RuntimeEndpoint("http://127.0.0.1:9", retries=0)


def test_a_wrong_key_is_told_and_not_shown() -> None:
    with fake_server(api_key="right") as server:
        with pytest.raises(RemoteError, match="key") as caught:
            RuntimeEndpoint(server.url, api_key="very-wrong")
        assert "very-wrong" not in str(caught.value)
        with RuntimeEndpoint(server.url, api_key="right") as endpoint:
            assert chat.run("?", **greedy(), backend=endpoint)["answer"]
            assert "right" not in repr(endpoint)
            assert "right" not in repr(vars(endpoint.wire))


@pytest.mark.model
def test_the_embedded_model_over_the_wire(embedded_runtime: Any) -> None:
    @sgl.function
    def capital(s: Any, country: str) -> None:
        s += sgl.user(f"What is the capital of {country}?")
        s += sgl.assistant("The capital is " + sgl.select("city", ["Paris", "Tokyo", "New York"]))

    with Server(embedded_runtime) as server, RuntimeEndpoint(server.url) as endpoint:
        assert endpoint.chat_template.name == "tokenizer"
        for country, city in (("France", "Paris"), ("Japan", "Tokyo")):
            state = capital.run(country, backend=endpoint)
            assert state["city"] == city
            meta = state.get_meta_info("city")
            assert meta is not None
            for row, choice in zip(meta["input_token_logprobs"], ["Paris", "Tokyo", "New York"], strict=True):
                assert "".join(entry[2] for entry in row) == choice


def test_a_grammar_reaches_the_server(endpoint: RuntimeEndpoint) -> None:
    context = endpoint.new_context()
    context.append("Well? ")
    params = SamplingParams(max_new_tokens=8, constraint=Constraint("ebnf", 'root ::= ("yes" | "no")'))
    assert generate(context, params) in ("yes", "no")


def generate(context: EndpointContext, params: SamplingParams) -> str:
    owner = Owner(run="r", program="p")
    made = context.generate(params, owner=owner, cancel=CancelToken(), on_delta=lambda delta: None)
    return asyncio.run(made).text
