"""`dtype=` and `select` on vendors' APIs: what is asked of each, what becomes of the answer, and what is refused."""

from __future__ import annotations

import dataclasses
import enum
import json
import warnings
from typing import Any

import pytest
from context_support import fake_runtime
from server_support import fake_server
from stub_server import Answer, Asked, Stub, stub_server

import lmnb as sgl
from lmnb.backends.remote.anthropic_backend import Anthropic
from lmnb.backends.remote.openai_backend import OpenAI
from lmnb.errors import ArgumentError, GenerationError
from lmnb.language.events import ChoiceMade
from lmnb.runtime.testing import ByteTokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*choices_method has no say")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def saying(*values: Any, reason: str = "stop") -> Any:
    """A chat API that answers with these values, in order; text as it is."""
    left = list(values)

    def rule(asked: Asked) -> Answer:
        value = left.pop(0) if len(left) > 1 else left[0]
        text = value if isinstance(value, str) and value[:1] == "{" else json.dumps({"value": value})
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        told = [
            {"index": 0, "delta": {"content": text[at : at + 5]}, "finish_reason": None}
            for at in range(0, len(text), 5)
        ]
        told.append({"index": 0, "delta": {}, "finish_reason": reason})
        usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
        events = [*({**chunk, "choices": [choice]} for choice in told), {**chunk, "choices": [], "usage": usage}]
        return Answer(events=tuple(events))

    return stub_server(rule)


def property_of(stub: Stub, index: int = -1) -> Any:
    sent = stub.asked[index].json["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["strict"] is True
    return sent["json_schema"]["schema"]["properties"]["value"]


@sgl.function
def ask(s: Any, before: str = "", **options: Any) -> None:
    s += sgl.user("How many?")
    s += sgl.assistant(before + sgl.gen("x", **options))


@pytest.mark.parametrize(
    ("dtype", "value", "text", "parsed", "schema"),
    [
        (int, 24, "24", 24, {"type": "integer"}),
        (float, 2.5, "2.5", 2.5, {"type": "number"}),
        (bool, False, "False", False, {"type": "boolean"}),
        (str, "a, b", '"a, b"', "a, b", {"type": "string"}),
        (Colour, "blue", "blue", Colour.BLUE, {"type": "string", "enum": ["red", "blue"]}),
    ],
)
def test_a_dtype_is_structured_output_on_a_chat_api(
    dtype: Any, value: Any, text: str, parsed: Any, schema: Any
) -> None:
    with saying(value) as stub, OpenAI("m", base_url=stub.url) as backend:
        state = ask.run(dtype=dtype, max_tokens=5, stop="END", backend=backend)
        assert (state["x"], state.parsed("x")) == (text, parsed)
        assert state.messages()[1] == {"role": "assistant", "content": text}
        assert property_of(stub) == schema
        sent = stub.asked[0].json
        assert sent["max_tokens"] > 5 + 10  # room for the JSON around the value
        assert "stop" not in sent  # a stop would cut the JSON
        meta = state.get_meta_info("x")
        assert meta is not None
        name = "choices" if dtype is Colour else dtype.__name__
        assert meta["constraint"] == f"{name} by response_format"
        assert meta["finish_reason"] == {"type": "stop", "matched": None}
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (9, 7)
        assert (backend.token_usage.calls, backend.token_usage.prompt_tokens) == (1, 9)


def test_a_stop_is_looked_for_in_the_value() -> None:
    with saying("red, green") as stub, OpenAI("m", base_url=stub.url) as backend:
        state = ask.run(dtype=str, stop=[",", "green"], backend=backend)
        assert state["x"] == '"red'
        assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": ","}  # type: ignore[index]


def test_text_before_a_value_is_told_in_the_schema() -> None:
    with saying(7) as stub, OpenAI("m", base_url=stub.url) as backend:
        state = ask.run("About ", dtype=int, backend=backend)
        assert state.messages()[1]["content"] == "About 7"
        assert property_of(stub)["description"].endswith(": About ")
        assert [message["role"] for message in stub.asked[0].json["messages"]] == ["user"]


def test_an_answer_that_is_cut_or_wrong_is_an_error() -> None:
    cases = [('{"val', "length", "raise max_tokens"), ("24 or so", "stop", r"asked for a value \(int\) and answered")]
    for text, reason, told in cases:
        with saying(text, reason=reason) as stub, OpenAI("m", base_url=stub.url) as backend:
            state = ask.run(dtype=int, backend=backend)
            with pytest.raises(GenerationError, match=told):
                state["x"]


def test_log_probabilities_of_json_are_not_passed_off_as_the_texts() -> None:
    with saying(1) as stub, OpenAI("m", base_url=stub.url) as backend:
        with pytest.raises(GenerationError, match="leave return_logprob out"):
            ask.run(dtype=int, return_logprob=True, backend=backend)["x"]
        assert stub.asked == []


def test_a_server_with_regexes_is_asked_for_the_regex() -> None:
    with fake_server() as server, OpenAI("fake", base_url=server.url + "/v1", server="sglang") as backend:
        there = ask.run("About ", dtype=int, temperature=0, max_tokens=6, backend=backend)["x"]
    with fake_runtime() as local:
        assert ask.run("About ", dtype=int, temperature=0, max_tokens=6, backend=local)["x"] == there


@dataclasses.dataclass
class Wand:
    wood: str
    length: int


@pytest.mark.parametrize(
    ("schema", "value", "sent"),
    [
        (list[int], [1, 2], {"type": "array", "items": {"type": "integer"}}),
        ({"enum": ["ä", 3]}, "ä", {"enum": ["ä", 3]}),
        (Wand, {"wood": "oak", "length": 11}, {"$ref": "#/$defs/Wand"}),
    ],
)
def test_a_schema_without_an_object_at_its_root_is_put_into_one(schema: Any, value: Any, sent: Any) -> None:
    with saying(value) as stub, OpenAI("m", base_url=stub.url) as backend:
        state = ask.run(json_schema=schema, backend=backend)
        assert state["x"] == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert state.parsed("x") == (Wand("oak", 11) if schema is Wand else value)
        assert property_of(stub) == sent
        whole = stub.asked[0].json["response_format"]["json_schema"]["schema"]
        assert ("$defs" in whole) == (schema is Wand)
        assert state.get_meta_info("x")["constraint"] == "json_schema by response_format"  # type: ignore[index]


def test_an_object_and_a_schema_that_refers_to_itself_are_sent_as_they_are() -> None:
    for schema in ({"type": "object"}, {"anyOf": [{"type": "null"}, {"items": {"$ref": "#"}}]}):
        with saying('{"a": 1}') as stub, OpenAI("m", base_url=stub.url) as backend:
            assert ask.run(json_schema=schema, backend=backend)["x"] == '{"a": 1}'
            assert stub.asked[0].json["response_format"]["json_schema"]["schema"] == schema


# select


@sgl.function
def pick(s: Any, choices: list[str], before: str = "") -> None:
    s += sgl.user("Where is Japan?")
    s += sgl.assistant(before + sgl.select("x", choices))


def test_a_chat_api_chooses_by_an_enum_and_says_that_nothing_was_scored() -> None:
    with saying("Asia") as stub, OpenAI("m", base_url=stub.url) as backend:
        state = pick.run(["Africa", "Asia"], "It is in ", backend=backend)
        assert state["x"] == "Asia"
        assert state.messages()[1]["content"] == "It is in Asia"
        assert property_of(stub)["enum"] == ["Africa", "Asia"]
        assert property_of(stub)["description"].endswith(": It is in ")
        assert stub.asked[0].json["temperature"] == 0
        meta = state.get_meta_info("x")
        assert meta is not None
        assert (meta["scores"], meta["choices_method"]) == (None, "chosen_by_api")
        assert "normalized_prompt_logprobs" not in meta
        state.run.wait(30)
        (event,) = [event for event in state.run.events if isinstance(event, ChoiceMade)]
        assert (event.text, event.scores, event.method) == ("Asia", [], "chosen_by_api")
        assert event.methods == [{"name": "chosen_by_api", "scores": [], "picked": 1}]
        assert backend.token_usage.calls == 1


@pytest.mark.filterwarnings("default")
def test_the_user_is_told_once_for_each_backend_and_at_the_programs_line() -> None:
    with saying("a") as stub, OpenAI("m", base_url=stub.url) as first, OpenAI("m", base_url=stub.url) as second:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for backend in (first, first, second):
                pick.run(["a", "b"], backend=backend).sync()
        ours = [one for one in told if issubclass(one.category, UserWarning)]  # others' sockets may be collected now
        assert [str(one.message).partition(";")[0] for one in ours] == [
            "m: select is made by the API's structured output"
        ] * 2
        assert {one.filename for one in ours} == {__file__}


def test_a_choice_that_is_none_is_an_error() -> None:
    with saying("Europe") as stub, OpenAI("m", base_url=stub.url) as backend:
        state = pick.run(["Africa", "Asia"], backend=backend)
        with pytest.raises(GenerationError, match=r"value \(choices\) and answered"):
            state["x"]


def test_models_with_one_temperature_are_not_asked_for_another() -> None:
    with saying("a") as stub:
        for name in ("o3-mini", "gpt-5", "gpt-4o"):
            with OpenAI(name, base_url=stub.url) as backend:
                pick.run(["a", "b"], backend=backend).sync()
        assert ["temperature" in asked.json for asked in stub.asked] == [False, False, True]


def test_a_server_that_goes_on_from_a_beginning_chooses_behind_it() -> None:
    with fake_server() as server, OpenAI("fake", base_url=server.url + "/v1", server="sglang") as backend:
        state = pick.run(["Africa", "Asia"], "It is in ", backend=backend)
        assert state["x"] in ("Africa", "Asia")
        assert state.get_meta_info("x")["choices_method"] == "chosen_by_api"  # type: ignore[index]


def test_anthropic_uses_its_own_structured_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")

    def rule(asked: Asked) -> Answer:
        usage = {"input_tokens": 5, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "c", "stop_reason": None}
        kind = asked.json["output_config"]["format"]["schema"]["properties"]["value"]
        text = json.dumps({"value": 3 if kind["type"] == "integer" else kind["enum"][0]})
        events = (
            {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        )
        return Answer(events=events, named=True)

    with stub_server(rule) as stub, Anthropic("claude-x", base_url=stub.url) as backend:
        state = ask.run("About ", dtype=int, backend=backend)
        assert (state["x"], state.get_meta_info("x")["constraint"]) == ("3", "int by output_config")  # type: ignore[index]
        # Its models refuse a beginning together with structured output.
        assert [message["role"] for message in stub.asked[0].json["messages"]] == ["user"]
        assert pick.run(["a", "b"], "It is ", backend=backend)["x"] == "a"


# Completion models


class Completing:
    """A completion API over bytes that goes on with `wanted` as far as bias, limit and stops let it."""

    def __init__(self, prompt: str, wanted: str, *, obeys: bool = True) -> None:
        self.prompt, self.wanted, self.obeys = prompt, wanted, obeys

    def __call__(self, asked: Asked) -> Answer:
        body = asked.json
        prompt = body["prompt"] if isinstance(body["prompt"], str) else bytes(body["prompt"]).decode()
        left = (self.prompt + self.wanted).removeprefix(prompt)
        allowed = {int(token) for token in body.get("logit_bias", {})}
        text, reason = "", "length"
        for sign in left[: body["max_tokens"]]:
            if allowed and self.obeys and ord(sign) not in allowed:
                sign = chr(max(allowed - {32}))
            text += sign
            stops = [stop for stop in body.get("stop", ()) if stop in text]
            if stops:
                text, reason = text.partition(stops[0])[0], "stop"
                break
        choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return Answer(
            {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )


@sgl.function
def complete(s: Any, **options: Any) -> None:
    s += "There are " + sgl.gen("x", **options)
    s += "!"


@pytest.mark.parametrize(
    ("options", "wanted", "text", "calls", "how"),
    [
        ({"dtype": int}, "24 hours", "24", 2, "int by logit_bias"),
        ({"dtype": int}, "-7\n", "-7", 3, "int by logit_bias"),
        ({"dtype": int, "max_tokens": 2}, "12345", "12", 2, "int by logit_bias"),
        ({"dtype": int, "max_tokens": 1}, "12345", "1", 1, "int by logit_bias"),
        ({"dtype": str}, '"a, b" and', '"a, b"', 1, "str by a quote and stops"),
        ({"dtype": str, "max_tokens": 3}, '"a, b" and', '"a, ', 1, "str by a quote and stops"),
        ({"dtype": bool}, "False alarms", "False", 1, "bool by logit_bias"),
        ({"dtype": Colour}, "blue skies", "blue", 1, "choices by logit_bias"),
    ],
)
def test_a_dtype_on_a_completion_model(options: Any, wanted: str, text: str, calls: int, how: str) -> None:
    with (
        stub_server(Completing("There are ", wanted)) as stub,
        OpenAI("m", is_chat_model=False, base_url=stub.url, tokenizer=ByteTokenizer()) as backend,
    ):
        state = complete.run(**options, backend=backend)
        assert state["x"] == text
        assert state.text() == f"There are {text}!"
        assert len(stub.asked) == calls == backend.token_usage.calls
        meta = state.get_meta_info("x")
        assert meta is not None
        assert meta["constraint"] == how
        cut = "max_tokens" in options
        assert meta["finish_reason"]["type"] == ("length" if cut else "stop")


def test_a_server_that_ignores_the_bias_is_found_out() -> None:
    with (
        stub_server(Completing("There are ", "many", obeys=False)) as stub,
        OpenAI("m", is_chat_model=False, base_url=stub.url, tokenizer=ByteTokenizer()) as backend,
        pytest.raises(GenerationError, match="ignores logit_bias"),
    ):
        complete.run(dtype=int, backend=backend)["x"]


def test_what_no_api_has_is_refused_by_the_name_that_the_program_gave_it() -> None:
    with stub_server(Completing("There are ", "2.5")) as stub:
        with (
            OpenAI("m", is_chat_model=False, base_url=stub.url, tokenizer=ByteTokenizer()) as backend,
            pytest.raises(GenerationError, match="cannot enforce dtype=float on a completion model"),
        ):
            complete.run(dtype=float, backend=backend)["x"]
        with (
            OpenAI("m", is_chat_model=False, base_url=stub.url, server="vllm") as backend,
            pytest.raises(GenerationError, match=r"cannot enforce a regex \(dtype=int is one\)"),
        ):
            complete.run(dtype=int, backend=backend)["x"]
        with OpenAI("m", base_url=stub.url) as backend, pytest.raises(GenerationError, match="cannot enforce a regex;"):
            ask.run(regex="a+", backend=backend)["x"]
        assert stub.asked == []
    assert issubclass(ArgumentError, ValueError)


def test_values_and_choices_within_a_turn_that_is_speculated() -> None:
    def rule(asked: Asked) -> Answer:
        schema = asked.json.get("response_format", {}).get("json_schema", {}).get("schema", {})
        kind = schema.get("properties", {}).get("value", {})
        text = json.dumps({"value": 41 if kind["type"] == "integer" else "no"}) if kind else "Name: Ann, age 40"
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
        return Answer(events=({**chunk, "choices": [choice]},))

    @sgl.function(num_api_spec_tokens=64)
    def card(s: Any) -> None:
        s += sgl.user("Write a card.")
        s += sgl.assistant(
            "Name: "
            + sgl.gen("name", stop=",")
            + ", age "
            + sgl.gen_int("age")
            + "; old: "
            + sgl.select("old", ["yes", "no"])
        )

    with stub_server(rule) as stub, OpenAI("m", base_url=stub.url) as backend:
        state = card.run(backend=backend)
        assert state.messages()[1]["content"] == "Name: Ann, age 41; old: no"
        assert len(stub.asked) == 3
        assert property_of(stub, 1)["description"].endswith(": Name: Ann, age ")
        assert property_of(stub, 2)["description"].endswith(": Name: Ann, age 41; old: ")
