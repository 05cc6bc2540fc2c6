"""SGLang's native protocol, as its released frontend speaks it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from engine_support import greedy
from patience import until
from server_support import call, events, fake_server

from lmnb.runtime.testing import ByteTokenizer
from lmnb.server import Server

TOKENIZER = ByteTokenizer()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server() as made:
        yield made


def sampling(**params: Any) -> dict[str, Any]:
    return {"temperature": 0, "ignore_eos": True, "max_new_tokens": 6, **params}


def generate(server: Server, **body: Any) -> Any:
    status, answer = call(server, "/generate", body)
    assert status == 200, answer
    return answer


def test_generate(server: Server) -> None:
    answer = generate(server, text="hello", sampling_params=sampling())
    ids = greedy("hello", 6)
    assert answer["text"] == TOKENIZER.decode(ids)
    assert answer["output_ids"] == ids
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 6)
    assert meta["e2e_latency"] > 0


def test_stream_is_cumulative(server: Server) -> None:
    _, text = call(server, "/generate", {"text": "stream", "stream": True, "sampling_params": sampling()})
    results = events(text)
    texts = [result["text"] for result in results]
    assert len(texts) > 2
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert texts[-1] == TOKENIZER.decode(greedy("stream", 6))
    assert [r["meta_info"]["finish_reason"] for r in results[:-1]] == [None] * (len(results) - 1)
    assert results[-1]["meta_info"]["finish_reason"]["type"] == "length"


def test_stop_is_cut_and_named(server: Server) -> None:
    text = TOKENIZER.decode(greedy("hello", 6))
    answer = generate(server, text="hello", sampling_params=sampling(stop=[text[2]]))
    assert answer["text"] == text[: text.index(text[2])]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": text[2]}


def test_no_tokens_puts_the_prompt_into_the_cache(server: Server) -> None:
    first = generate(server, text="a long prefix", sampling_params={"max_new_tokens": 0})
    assert first["text"] == ""
    assert first["meta_info"]["completion_tokens"] == 0
    second = generate(server, text="a long prefix and more", sampling_params=sampling())
    assert second["meta_info"]["cached_tokens"] >= len("a long prefix")


def test_batched_choices_with_logprobs(server: Server) -> None:
    rows = generate(
        server,
        text=["Q: ab", "Q: cde"],
        sampling_params={"max_new_tokens": 0, "temperature": 0},
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=1,
    )
    told = [row["meta_info"]["input_token_logprobs"] for row in rows]
    assert [[entry[2] for entry in row] for row in told] == [list(": ab"), list(": cde")]
    assert all(entry[0] < 0 for row in told for entry in row)
    assert told[0][0] == told[1][0]


def test_first_prompt_logprob_is_none(server: Server) -> None:
    answer = generate(
        server, text="abc", sampling_params=sampling(), return_logprob=True, logprob_start_len=0, top_logprobs_num=2
    )
    meta = answer["meta_info"]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == list(b"abc")
    assert meta["input_token_logprobs"][0][0] is None
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    assert [len(top) for top in meta["output_top_logprobs"]] == [2] * 6
    assert meta["output_token_logprobs"][0][2] is None  # texts were not asked for


def test_token_ids_as_prompt(server: Server) -> None:
    by_ids = generate(server, input_ids=list(b"hello"), sampling_params=sampling())
    assert by_ids["text"] == TOKENIZER.decode(greedy("hello", 6))
    many = generate(server, input_ids=[list(b"hello"), list(b"abc")], sampling_params=sampling())
    assert [row["text"] for row in many] == [TOKENIZER.decode(greedy(text, 6)) for text in ("hello", "abc")]


def test_samples_are_a_list(server: Server) -> None:
    rows = generate(server, text="hello", sampling_params=sampling(n=3, temperature=1, seed=5))
    assert len({row["text"] for row in rows}) == 3


def test_batched_stream_tells_the_index(server: Server) -> None:
    _, text = call(server, "/generate", {"text": ["a", "b"], "stream": True, "sampling_params": sampling()})
    last = {event["index"]: event["text"] for event in events(text)}
    assert last == {0: TOKENIZER.decode(greedy("a", 6)), 1: TOKENIZER.decode(greedy("b", 6))}


def test_regex_is_enforced(server: Server) -> None:
    answer = generate(server, text="number:", sampling_params=sampling(regex="[0-9]{4}", ignore_eos=False))
    assert answer["text"].isdigit()
    assert len(answer["text"]) == 4


def test_a_grammar_is_enforced(server: Server) -> None:
    answer = generate(server, text="?", sampling_params=sampling(ebnf='root ::= ("yes" | "no")', ignore_eos=False))
    assert answer["text"] in ("yes", "no")


def test_forced_text_is_counted_once(server: Server) -> None:
    """Tokens that the grammar forces may be told twice, in other cuts; a stream's last count is the whole's."""
    body = {"text": "?", "sampling_params": sampling(regex="(abcdefgh)+", max_new_tokens=20), "return_logprob": True}
    whole = generate(server, **body)
    _, text = call(server, "/generate", {**body, "stream": True})
    counts = [event["meta_info"]["completion_tokens"] for event in events(text)]
    assert counts == sorted(counts)
    assert counts[-1] == whole["meta_info"]["completion_tokens"] == len(whole["output_ids"]) > 8
    assert len(whole["meta_info"]["output_token_logprobs"]) == len(whole["output_ids"])


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "text or input_ids"),
        ({"text": "a", "sampling_params": {"top_q": 1}}, "top_q"),
        ({"text": "a", "sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_tokens"),
        ({"text": "a", "sampling_params": {"seed": "x"}}, "seed"),
        ({"text": "a", "sampling_params": {"n": 100000}}, "n must be"),
        ({"text": "a", "sampling_params": {"structural_tag": "{}"}}, "structural_tag"),
        ({"text": "a", "sampling_params": {"regex": "a", "json_schema": "{}"}}, "exclude"),
        ({"text": "a", "sampling_params": {"regex": "(("}}, "regex"),
        ({"text": "a" * 5000, "sampling_params": {}}, "5000 tokens"),
        ({"text": "a " * 1_000_000, "sampling_params": {}}, "more tokens than"),
        (
            {"text": "a", "sampling_params": {"stop": ["a", ""]}},
            "stop must be text or a list of texts, none of them empty",
        ),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"input_ids": [9999]}, "9999"),
        ([1], "JSON object"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ({"text": "a", "sampling_params": {"temperature": float("nan")}}, "temperature must be a number"),
        ({"text": "a", "sampling_params": {"seed": 10**400, "top_k": 1.5}}, "top_k"),
        ({"text": "a", "sampling_params": {"repetition_penalty": 1e-300}}, "repetition_penalty must lie"),
        ({"text": "a", "sampling_params": {"stop": "\ud800"}}, "half a surrogate pair"),
        ({"text": "a", "sampling_params": {"stop_token_ids": [2**70]}}, "stop_token_ids"),
        ({"text": "a", "sampling_params": {"regex": "a{1000000}"}}, "too large"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": 1.5}, "logprob_start_len"),
        ({"input_ids": [2**70]}, "token ids must lie"),
    ],
)
def test_bad_requests_say_what_is_wrong(server: Server, body: Any, word: str) -> None:
    status, answer = call(server, "/generate", body)
    assert status == 400
    assert word in answer["error"]["message"]
    assert len(generate(server, text="still alive", sampling_params=sampling())["output_ids"]) == 6


def test_half_a_character_in_a_prompt_becomes_a_sign_of_it(server: Server) -> None:
    one, other = (generate(server, text=text, sampling_params=sampling()) for text in ("a\ud800b", "a\ufffdb"))
    assert one["meta_info"]["prompt_tokens"] == other["meta_info"]["prompt_tokens"]
    assert one["output_ids"] == other["output_ids"]


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "(a+)\\1"}, "back-reference"),
        ({"json_schema": '{"enum": []}'}, "at least one value"),
        ({"json_schema": "{"}, "not valid JSON"),
        ({"ebnf": "start: nothing"}, "nothing"),
        ({"stop_regex": "("}, "stop_regex"),
    ],
    ids=str,
)
def test_what_is_refused_is_refused_before_a_stream_begins(server: Server, params: Any, word: str) -> None:
    body = {"text": "a", "sampling_params": sampling(**params)}
    whole = call(server, "/generate", body)
    assert call(server, "/generate", {**body, "stream": True}) == whole
    assert whole[0] == 400
    assert word in whole[1]["error"]["message"]
    assert "\n" not in whole[1]["error"]["message"]


def test_one_refused_prompt_of_many_is_found_before_a_stream_begins(server: Server) -> None:
    params = [sampling(), sampling(regex="[0-9]+"), sampling(regex="(?=a)b")]
    status, answer = call(server, "/generate", {"text": ["a", "b", "c"], "stream": True, "sampling_params": params})
    assert status == 400
    assert "look-around" in answer["error"]["message"]
    until(lambda: server.runtime.status().running == 0)
    status, answer = call(server, "/generate", {"text": ["a", "b"], "stream": True, "sampling_params": params[:2]})
    assert status == 200
    assert {item["index"] for item in events(answer)} == {0, 1}


def test_a_failure_before_the_first_token_is_no_stream(server: Server) -> None:
    server.runtime._engine()._loop.model.fail_next = RuntimeError("no more room")  # type: ignore[attr-defined]
    status, answer = call(server, "/generate", {"text": "a", "stream": True, "sampling_params": sampling()})
    assert status == 500
    assert "no more room" in answer["error"]["message"]


def test_information(server: Server) -> None:
    assert call(server, "/health") == (200, "")
    status, info = call(server, "/get_model_info")
    assert (status, info["model_path"], info["is_generation"]) == (200, "fake", True)
    status, info = call(server, "/server_info")
    assert info["pool_tokens"] == 4096
    assert call(server, "/v1/models")[1]["data"][0]["id"] == "fake"
    assert call(server, "/nothing")[0] == 404


def test_flush(server: Server) -> None:
    generate(server, text="remember me", sampling_params=sampling())
    assert call(server, "/flush_cache", "", method="POST")[0] == 200
    again = generate(server, text="remember me", sampling_params=sampling())
    assert again["meta_info"]["cached_tokens"] == 0


def test_abort_by_id() -> None:
    with fake_server(step_seconds=0.01) as server:
        answers: list[Any] = []
        body = {"text": "a", "rid": "mine", "sampling_params": sampling(max_new_tokens=2000)}
        thread = threading.Thread(target=lambda: answers.append(call(server, "/generate", body)))
        thread.start()
        until(lambda: server.runtime.status().running == 1)
        assert call(server, "/flush_cache", "", method="POST")[0] == 400
        assert call(server, "/abort_request", {"rid": "mine"})[0] == 200
        thread.join(30)
        status, answer = answers[0]
        assert status == 200
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert call(server, "/abort_request", {})[0] == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_generation(stream: bool) -> None:
    with fake_server(step_seconds=0.01) as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
        body = {"text": "a", "stream": stream, "sampling_params": sampling(max_new_tokens=3000)}
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        until(lambda: server.runtime.status().running == 1)
        connection.close()
        until(lambda: server.runtime.status().running == 0)
        assert server.runtime.status().generated_tokens < 1000
