"""Images on the wire of each protocol, as it is documented; and what each of them refuses."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from picture_support import encoded, grey_video, picture, png
from server_support import call, fake_server
from stub_server import Answer, Asked, Stub, stub_server

import lmnb as sgl
from lmnb.backends.remote.anthropic_backend import Anthropic
from lmnb.backends.remote.endpoint import RuntimeEndpoint
from lmnb.backends.remote.litellm_backend import LiteLLM
from lmnb.backends.remote.openai_backend import OpenAI
from lmnb.errors import ArgumentError, GenerationError

RED, BLUE = png("red"), encoded(picture(colour="blue"), "JPEG")
RED64, BLUE64 = base64.b64encode(RED).decode(), base64.b64encode(BLUE).decode()
VISION = {"model_path": "stub/llava-v1.6-34b", "is_generation": True}
TEXT_ONLY = {**VISION, "has_image_understanding": False}


@sgl.function
def look(s: Any, *sources: Any) -> None:
    s += sgl.system("Be brief.")
    with s.user():
        for source in sources:
            s += sgl.image(source)
        s += "What is it?"
    s += sgl.assistant(sgl.gen("answer", max_tokens=8))


def sglang(info: Any = VISION) -> Any:
    """A server that speaks SGLang's protocol."""

    def result(**meta: Any) -> Any:
        known = {"id": "r", "finish_reason": {"type": "stop"}, "prompt_tokens": 9, "completion_tokens": 1}
        return {"text": "A", "meta_info": {**known, **meta}}

    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_model_info":
            return Answer(info)
        if asked.json.get("stream"):
            return Answer(events=(result(),))
        texts = asked.json["text"]
        if isinstance(texts, str):
            return Answer(result())
        row = [[None, 1, "?"], [-1.0, 2, ":"]]
        return Answer([result(input_token_logprobs=[*row, [-1.0 - i, 3 + i, t[-1]]]) for i, t in enumerate(texts)])

    return stub_server(rule)


def bodies(stub: Stub) -> list[Any]:
    return [asked.json for asked in stub.asked if asked.path == "/generate"]


def test_one_image_is_a_string_and_several_are_a_list() -> None:
    with sglang() as stub, RuntimeEndpoint(stub.url) as backend:
        state = look.run(RED, backend=backend)
        assert state["answer"] == "A"
        look.run(RED, BLUE, backend=backend).sync()
        one, two = bodies(stub)
        assert one["image_data"] == RED64
        assert two["image_data"] == [RED64, BLUE64]
        assert state.text().startswith(one["text"] + "A")
        assert "user\n<image>\nWhat is it?" in one["text"]
        assert "user\n<image>\n<image>\nWhat is it?" in two["text"]
        assert list(one)[:4] == ["text", "sampling_params", "image_data", "stream"]


def test_the_hint_before_a_fork_and_a_select_have_the_images() -> None:
    @sgl.function
    def pick(s: Any, *sources: Any) -> None:
        for source in sources:
            s += sgl.image(source)
        s += ":"
        forks = s.fork(2)
        forks += sgl.select("x", ["a", "b"])
        forks.join()

    with sglang() as stub, RuntimeEndpoint(stub.url) as backend:
        pick.run(RED, backend=backend).sync()
        one = bodies(stub)
        stub.asked.clear()
        pick.run(RED, BLUE, backend=backend).sync()
        two = bodies(stub)
    assert [body["image_data"] for body in one] == [RED64] * 5  # the hint; and for each branch a count and a score
    scores = [body for body in two if isinstance(body["text"], list)]
    assert [body["image_data"] for body in scores] == [[[RED64, BLUE64]] * 2] * 2  # a list for each choice
    assert [body["image_data"] for body in two if body not in scores] == [[RED64, BLUE64]] * 3


def test_an_unconditional_score_has_no_image() -> None:
    @sgl.function
    def pick(s: Any) -> None:
        s += sgl.image(RED) + ":"
        s += sgl.select("x", ["a", "b"], choices_method=sgl.unconditional_likelihood_normalized)

    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_model_info":
            return Answer(VISION)
        meta = {"id": "r", "finish_reason": None, "prompt_tokens": 2, "completion_tokens": 0}
        prompts = asked.json.get("text") or asked.json["input_ids"]
        if isinstance(prompts, str):
            return Answer({"text": "", "meta_info": meta})
        rows = [[[None, 1, ":"], [-1.0, 3, "a"]], [[None, 1, ":"], [-2.0, 4, "b"]]]
        rows = rows if "text" in asked.json else [row[1:] for row in rows]
        return Answer([{"text": "", "meta_info": {**meta, "input_token_logprobs": row}} for row in rows])

    with stub_server(rule) as stub, RuntimeEndpoint(stub.url) as backend:
        assert pick.run(backend=backend)["x"] == "a"
        assert ["image_data" in body for body in bodies(stub)] == [True, True, False]


def test_a_video_goes_as_one_piece(tmp_path: Path) -> None:
    node = sgl.video(str(grey_video(tmp_path / "a.mp4", 20)), 3)

    @sgl.function
    def watch(s: Any) -> None:
        s += sgl.user(node + "What happens?")
        s += sgl.assistant(sgl.gen("answer"))

    with sglang() as stub, RuntimeEndpoint(stub.url) as backend:
        watch.run(backend=backend).sync()
        (body,) = bodies(stub)
        assert body["image_data"] == node.picture.base64  # type: ignore[attr-defined]
        assert body["image_data"].startswith("video:")
        assert body["text"].count("<image>") == 1


def test_a_text_that_spells_an_image_out_is_told_apart_by_nothing_and_refused() -> None:
    @sgl.function
    def quote(s: Any, text: str, seeing: bool) -> None:
        s += sgl.user((sgl.image(RED) if seeing else "") + text)
        s += sgl.assistant(sgl.gen("answer"))

    with sglang() as stub, RuntimeEndpoint(stub.url) as backend:
        assert quote.run("In HTML, <image> is no tag.", False, backend=backend)["answer"] == "A"
        with pytest.raises(GenerationError, match=r"has 1 images, and says '<image>'.* 2 times"):
            quote.run("In HTML, <image> is no tag.", True, backend=backend)["answer"]
        assert len(bodies(stub)) == 1


def test_a_server_that_says_that_it_reads_no_images_is_believed() -> None:
    with sglang(TEXT_ONLY) as stub, RuntimeEndpoint(stub.url) as backend:
        assert not backend.capabilities.images
        with pytest.raises(ArgumentError, match=r"llava.*RuntimeEndpoint reads no images"):
            look.run(RED, backend=backend)
        assert bodies(stub) == []


def test_lmnb_serve_refuses_images_in_both_protocols() -> None:
    with fake_server() as server:
        with RuntimeEndpoint(server.url) as backend, pytest.raises(ArgumentError, match="reads no images"):
            look.run(RED, backend=backend)
        status, told = call(server, "/generate", {"text": "<image>", "image_data": RED64})
        assert (status, "model reads text only" in told["error"]["message"]) == (400, True)
        with OpenAI("fake", base_url=server.url + "/v1") as chat, pytest.raises(GenerationError, match="type text"):
            look.run(RED, backend=chat)["answer"]


# Chat APIs


def chat_answer(asked: Asked) -> Answer:
    choice = {"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}
    return Answer(
        events=({"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]},)
    )


def test_openai_gets_parts_in_their_order() -> None:
    with stub_server(chat_answer) as stub, OpenAI("gpt-x", base_url=stub.url) as backend:
        state = look.run(RED, BLUE, backend=backend)
        assert state["answer"] == "A"
        sent = stub.asked[0].json["messages"]
        assert sent == [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{RED64}"}},
                    {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{BLUE64}"}},
                    {"type": "text", "text": "What is it?"},
                ],
            },
        ]
        assert state.messages()[:2] == sent


def test_a_program_without_roles_is_one_user_turn_with_its_images() -> None:
    @sgl.function
    def bare(s: Any) -> None:
        s += sgl.image(RED) + "\n" + sgl.image(BLUE)
        s += sgl.gen("answer")

    with stub_server(chat_answer) as stub, OpenAI("gpt-x", base_url=stub.url) as backend:
        assert bare.run(backend=backend)["answer"] == "A"
        (message,) = stub.asked[0].json["messages"]
        assert message["role"] == "user"
        assert [part["type"] for part in message["content"]] == ["image_url", "image_url"]  # white space is no part


def test_a_video_is_frames_to_a_chat_api(tmp_path: Path) -> None:
    node = sgl.video(str(grey_video(tmp_path / "a.mp4", 20)), 3)

    @sgl.function
    def watch(s: Any) -> None:
        s += sgl.user(node + "What happens?")
        s += sgl.assistant(sgl.gen("answer"))

    with stub_server(chat_answer) as stub, OpenAI("gpt-x", base_url=stub.url) as backend:
        watch.run(backend=backend).sync()
        content = stub.asked[0].json["messages"][0]["content"]
        frames = [image.data_uri for image in node.picture.frames]  # type: ignore[attr-defined]
        assert [part["image_url"]["url"] for part in content[:3]] == frames
        assert content[3] == {"type": "text", "text": "What happens?"}


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_chat_apis_take_images_in_user_turns_only(role: str) -> None:
    @sgl.function
    def wrong(s: Any) -> None:
        s += getattr(sgl, role)(sgl.image(RED))
        s += sgl.user("?") + sgl.assistant(sgl.gen("x"))

    with stub_server(chat_answer) as stub, OpenAI("gpt-x", base_url=stub.url) as backend:
        with pytest.raises(GenerationError, match=f"images in user turns, not in {role} turns"):
            wrong.run(backend=backend)["x"]
        assert stub.asked == []


def test_an_image_outside_of_turns_is_refused_as_text_is() -> None:
    @sgl.function
    def wrong(s: Any) -> None:
        s += sgl.image(RED)
        s += sgl.user("?") + sgl.assistant(sgl.gen("x"))

    with stub_server(chat_answer) as stub, OpenAI("gpt-x", base_url=stub.url) as backend:
        state = wrong.run(backend=backend)
        with pytest.raises(GenerationError, match=r"outside of turns.*user"):
            state.sync()


def test_completion_models_read_no_images() -> None:
    with stub_server(chat_answer) as stub:
        backend = OpenAI("davinci-002", base_url=stub.url)
        with pytest.raises(ArgumentError, match="davinci-002 on OpenAI reads no images"):
            look.run(RED, backend=backend)


def test_speculation_keeps_images_and_refuses_as_the_backend_does() -> None:
    @sgl.function(num_api_spec_tokens=8)
    def look_up(s: Any) -> None:
        s += sgl.user(sgl.image(RED) + "What is it?")
        s += sgl.assistant(sgl.gen("answer", stop="."))

    with stub_server(chat_answer) as stub, OpenAI("gpt-x", base_url=stub.url) as backend:
        assert look_up.run(backend=backend)["answer"] == "A"
        assert stub.asked[0].json["messages"][0]["content"][0]["type"] == "image_url"
    with pytest.raises(ArgumentError, match="on OpenAI reads no images"):
        look_up.run(backend=OpenAI("davinci-002", base_url=stub.url))


def test_anthropic_gets_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    usage = {"input_tokens": 5, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "c", "stop_reason": None}
    events = (
        {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "A"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    )
    with stub_server(lambda _: Answer(events=events, named=True)) as stub:
        with Anthropic("claude-x", base_url=stub.url) as backend:
            assert look.run(RED, BLUE, backend=backend)["answer"] == "A"
        sent = stub.asked[0].json
        assert sent["system"] == "Be brief."
        assert sent["messages"] == [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": RED64}},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": BLUE64}},
                    {"type": "text", "text": "What is it?"},
                ],
            }
        ]


def test_litellm_gets_openais_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    async def acompletion(**arguments: Any) -> Any:
        calls.append(arguments)

        async def chunks() -> Any:
            yield SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content="A"), finish_reason="stop")])

        return chunks()

    module = ModuleType("litellm")
    module.acompletion = acompletion  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litellm", module)
    with LiteLLM("vendor/m") as backend:
        assert look.run(RED, backend=backend)["answer"] == "A"
    assert calls[0]["messages"][1]["content"][0]["image_url"]["url"] == f"data:image/png;base64,{RED64}"
