"""`VertexAI` through Google's SDK, on a server that records what it is sent; and `Crusoe`."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from google.oauth2.credentials import Credentials
from picture_support import png
from stub_server import Answer, Asked, Stub, stub_server

import lmnb as sgl
from lmnb.errors import ArgumentError, GenerationError, MissingPackageError, RemoteError

SETTINGS = {"HARM_CATEGORY_HARASSMENT": "BLOCK_NONE"}


def chunk(text: str = "", reason: str | None = None, **candidate: Any) -> Any:
    told = {"content": {"role": "model", "parts": [{"text": text}]}, **candidate}
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 2, "cachedContentTokenCount": 3}
    return {"candidates": [{**told, **({"finishReason": reason} if reason else {})}], "usageMetadata": usage}


def answering(*chunks: Any) -> Any:
    return stub_server(lambda _: Answer(events=chunks, broken=True))


def model(stub: Stub, **options: Any) -> Any:
    given = {"project": "p", "location": "us-central1", "credentials": Credentials(token="ya29.secret"), **options}
    return sgl.VertexAI("gemini-x", SETTINGS, base_url=stub.url, max_retries=0, **given)


@pytest.fixture(autouse=True)
def _no_project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GCP_PROJECT_ID", "GCP_LOCATION", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    return


@sgl.function
def talk(s: Any, **options: Any) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user(sgl.image(png()) + "What is it?")
    s += sgl.assistant(sgl.gen("a", max_tokens=8, stop="END", **options))
    s += sgl.user("And?")
    s += sgl.assistant(sgl.gen("b", max_tokens=4))


def test_a_talk_on_the_wire() -> None:
    with answering(chunk("A "), chunk("cat", "STOP")) as stub, model(stub) as backend:
        state = talk.run(top_k=3, temperature=0.5, backend=backend)
        assert (state["a"], state["b"]) == ("A cat", "A cat")
        meta = state.get_meta_info("a")
        assert meta is not None
        assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (7, 3, 2)
        assert state.messages()[0]["content"] == "Be brief."
        first, second = stub.asked
        assert first.path == (
            "/v1beta1/projects/p/locations/us-central1/publishers/google/models/gemini-x:streamGenerateContent?alt=sse"
        )
        (user,) = first.json["contents"]
        inline, text = user["parts"]
        assert inline["inlineData"]["data"] == base64.b64encode(png()).decode()
        assert "image/png" in inline["inlineData"].values()
        assert (user["role"], text) == ("user", {"text": "What is it?"})
        assert first.json["systemInstruction"]["parts"] == [{"text": "Be brief."}]
        assert first.json["safetySettings"] == [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
        sampling = {"maxOutputTokens": 8, "temperature": 0.5, "topK": 3, "stopSequences": ["END"]}
        assert first.json["generationConfig"] == sampling
        assert [content["role"] for content in second.json["contents"]] == ["user", "model", "user"]
        assert second.json["systemInstruction"] == first.json["systemInstruction"]
        assert backend.token_usage.calls == 2
        assert "ya29.secret" not in repr(backend) + repr(vars(backend)) + str(backend.get_server_info())


@pytest.mark.filterwarnings("ignore:.*choices_method has no say")
def test_values_schemas_and_choices() -> None:
    def rule(asked: Asked) -> Answer:
        config = asked.json["generationConfig"]
        assert config["responseMimeType"] == "application/json"
        kind = config["responseJsonSchema"].get("properties", {}).get("value", {})
        value = {"integer": 24, "string": "b"}.get(kind.get("type", ""))
        text = json.dumps({"value": value} if kind else {"city": "Oslo"})
        return Answer(events=(chunk(text, "STOP"),), broken=True)

    @sgl.function
    def ask(s: Any) -> None:
        s += sgl.user("?")
        s += sgl.assistant(sgl.gen_int("number"))
        s += sgl.user("?")
        s += sgl.assistant("It is " + sgl.select("choice", ["a", "b"]))
        s += sgl.user("?")
        s += sgl.assistant(sgl.gen("object", json_schema={"type": "object"}))

    with stub_server(rule) as stub, model(stub) as backend:
        state = ask.run(backend=backend)
        assert (state["number"], state["choice"], state.parsed("object")) == ("24", "b", {"city": "Oslo"})
        assert state.get_meta_info("number")["constraint"] == "int by response_json_schema"  # type: ignore[index]


def test_log_probabilities() -> None:
    told = {
        "chosenCandidates": [{"token": "Yes", "tokenId": 3, "logProbability": -0.25}],
        "topCandidates": [
            {"candidates": [{"token": "Yes", "logProbability": -0.25}, {"token": "No", "logProbability": -2}]}
        ],
    }

    @sgl.function
    def ask(s: Any) -> None:
        s += sgl.user("?")
        s += sgl.assistant(sgl.gen("x", return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True))

    with answering(chunk("Yes", "STOP", logprobsResult=told)) as stub, model(stub) as backend:
        meta = ask.run(backend=backend).get_meta_info("x")
        assert meta is not None
        assert [(value, text) for value, _, text in meta["output_token_logprobs"]] == [(-0.25, "Yes")]
        assert [(value, text) for value, _, text in meta["output_top_logprobs"][0]] == [(-0.25, "Yes"), (-2, "No")]
        assert stub.asked[0].json["generationConfig"]["logprobs"] == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (chunk("Half", "SAFETY"), "reason SAFETY"),
        ({"promptFeedback": {"blockReason": "SAFETY"}}, "prompt was blocked for the reason SAFETY"),
        (chunk("Half"), "ended before the answer did; what came before is in the text"),
    ],
)
def test_what_google_blocks_or_does_not_end_is_an_error(answer: Any, says: str) -> None:
    with answering(answer) as stub, model(stub) as backend:
        state = talk.run(backend=backend)
        with pytest.raises(GenerationError, match=says):
            state["a"]


def test_googles_own_message_is_passed_on() -> None:
    told = {"error": {"code": 404, "message": "Publisher model gemini-x was not found", "status": "NOT_FOUND"}}
    with stub_server(lambda _: Answer(told, status=404)) as stub, model(stub) as backend:
        with pytest.raises(GenerationError, match=r"was not found.*\(HTTP 404\)") as failed:
            talk.run(backend=backend)["a"]
        assert isinstance(failed.value.__cause__, RemoteError)
        assert "ya29.secret" not in str(failed.value)


def test_thoughts_are_no_answer() -> None:
    thinking = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hmm.", "thought": True}]}}]}
    with answering(thinking, chunk("A cat", "STOP")) as stub, model(stub) as backend:
        assert talk.run(backend=backend)["a"] == "A cat"


def test_project_and_location_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="needs a project: set the environment variable GCP_PROJECT_ID"):
        sgl.VertexAI("gemini-x")
    monkeypatch.setenv("GCP_PROJECT_ID", "mine")
    with pytest.raises(ArgumentError, match="GCP_LOCATION"):
        sgl.VertexAI("gemini-x")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "europe-north1")
    with sgl.VertexAI("gemini-x") as backend:
        assert "mine in europe-north1" in repr(backend)
    with pytest.raises(ArgumentError, match="saved with the notebook"):
        sgl.VertexAI("gemini-x", api_key="secret")
    monkeypatch.setitem(sys.modules, "google.genai", None)
    with pytest.raises(MissingPackageError, match=r"lmnb\[google\]"):
        sgl.VertexAI("gemini-x")


def test_a_later_system_turn_is_refused_by_name() -> None:
    @sgl.function
    def late(s: Any) -> None:
        s += sgl.user("?") + sgl.system("Be brief.") + sgl.user("!")
        s += sgl.assistant(sgl.gen("x"))

    with answering(chunk("A", "STOP")) as stub, pytest.raises(GenerationError, match="VertexAI takes system turns at"):
        late.run(backend=model(stub))["x"]


# Crusoe


def test_crusoe_is_openais_protocol_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRUSOE_API_KEY", raising=False)
    with pytest.raises(ArgumentError, match="CRUSOE_API_KEY"):
        sgl.Crusoe("meta-llama/Llama-3.3-70B-Instruct")
    monkeypatch.setenv("CRUSOE_API_KEY", "crusoe-secret")
    with sgl.Crusoe("meta-llama/Llama-3.3-70B-Instruct") as backend:
        assert "Crusoe('meta-llama/Llama-3.3-70B-Instruct', chat at https://managed-inference-api-proxy." in repr(
            backend
        )
        assert "crusoe-secret" not in repr(backend)
        assert backend.chat_template.name == "llama-3-instruct"

    def rule(asked: Asked) -> Answer:
        choice = {"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}
        return Answer(events=({"id": "1", "object": "x", "created": 0, "model": "m", "choices": [choice]},))

    @sgl.function
    def ask(s: Any) -> None:
        s += sgl.user("?")
        s += sgl.assistant(sgl.gen("x", max_tokens=4))

    with stub_server(rule) as stub, sgl.Crusoe("m", base_url=stub.url) as backend:
        assert ask.run(backend=backend)["x"] == "A"
        assert stub.asked[0].path == "/chat/completions"
        assert stub.asked[0].headers["Authorization"] == "Bearer crusoe-secret"
        assert stub.asked[0].json["max_tokens"] == 4
    with pytest.raises(ArgumentError, match="saved with the notebook"):
        sgl.Crusoe("m", api_key="crusoe-secret")
