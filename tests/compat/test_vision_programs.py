"""SGLang's programs with images and videos: what they say on a scripted backend, and what reaches a server.

No model that sees runs here, so answers are not looked at; structure and requests are.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from picture_support import grey_video, picture, png
from stub_server import Answer, Asked, Stub, stub_server

import lmnb as sgl

TAXI, CAT = png("yellow", 32, 24), png("black", 16, 16)


@sgl.function
def image_qa(s, image, question):
    s += sgl.user(sgl.image(image) + question)
    s += sgl.assistant(sgl.gen("answer"))


@sgl.function
def two_images(s, first, second, question):
    s += sgl.user(sgl.image(first) + sgl.image(second) + question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=32))


@sgl.function
def image_judge(s, image, description):
    """Branches that look at one image, as the judge does that SGLang's paper begins with."""
    s += sgl.system("Evaluate a description of an image.")
    s += sgl.user(sgl.image(image) + "Description: " + description)
    s += sgl.assistant("Sure!")
    s += sgl.user("Is the description related to the image?")
    s += sgl.assistant(sgl.select("related", choices=["yes", "no"]))
    if s["related"] == "no":
        return
    forks = s.fork(2)
    for f, dimension in zip(forks, ("Clarity", "Evidence"), strict=True):
        f += sgl.user("Evaluate it by " + dimension + ".")
        f += sgl.assistant("Judgment: " + sgl.gen("judgment", stop="END"))
    forks.join()
    s += sgl.user("Give a grade.")
    s += sgl.assistant(sgl.gen("output", regex=r'\{"grade": "[ABCD]"\}'))


@sgl.function
def video_qa(s, num_frames, path, question):
    s += sgl.user(sgl.video(path, num_frames) + question)
    s += sgl.assistant(sgl.gen("answer"))


@pytest.fixture
def server() -> Iterator[Stub]:
    """A server of a model that sees, which says the same to everything."""

    def result(**meta: Any) -> Any:
        known = {"id": "r", "finish_reason": {"type": "stop"}, "prompt_tokens": 99, "completion_tokens": 2}
        return {"text": '{"grade": "A"}', "meta_info": {**known, **meta}}

    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_model_info":
            return Answer({"model_path": "lmms-lab/llava-next-8b", "is_generation": True})
        if asked.json.get("stream"):
            return Answer(events=(result(),))
        if isinstance(asked.json["text"], str):
            return Answer(result())
        start = [[None, 1, "an"], [-1.0, 2, "\n\n"]]
        likely = {"yes": -0.5, "no": -2.0}
        texts = [text.rpartition("\n\n")[2] for text in asked.json["text"]]
        return Answer([result(input_token_logprobs=[*start, [likely[text], 3, text]]) for text in texts])

    with stub_server(rule) as stub:
        yield stub


@pytest.fixture
def llava(server: Stub) -> Iterator[sgl.RuntimeEndpoint]:
    with sgl.RuntimeEndpoint(server.url) as backend:
        backend.chat_template = sgl.get_chat_template("llama-3-instruct-llava")
        sgl.set_default_backend(backend)
        yield backend


def generations(server: Stub) -> list[Any]:
    return [body for body in server.bodies("/generate") if body.get("stream")]


def test_image_qa(scripted: Any, tmp_path: Path) -> None:
    path = tmp_path / "taxi.png"
    path.write_bytes(TAXI)
    backend = scripted("A yellow taxi on a street.")
    state = image_qa.run(image=str(path), question="Please describe this image in simple words.", temperature=0)
    messages = state.messages()
    assert len(messages) == 2
    assert "taxi" in messages[-1]["content"]
    assert backend.calls[-1].images[0].data == TAXI
    states = image_qa.run_batch([{"image": str(path), "question": "Short?"}, {"image": CAT, "question": "Long?"}])
    assert [state["answer"] for state in states] == ["A yellow taxi on a street."] * 2


def test_single_stream_batch_and_async(scripted: Any) -> None:
    scripted("It is black.", token_delay=0.001)
    state = image_qa.run(CAT, "What colour?", stream=True)
    assert "".join(state.text_iter("answer")) == "It is black."
    assert "".join(image_qa.run(CAT, "What colour?", stream=True).text_iter()) == state.text()

    async def read() -> str:
        other = image_qa.run(CAT, "What colour?", stream=True)
        return "".join([piece async for piece in other.text_async_iter("answer")])

    assert asyncio.run(read()) == "It is black."


def test_the_llava_example_on_its_server(server: Stub, llava: sgl.RuntimeEndpoint) -> None:
    state = image_qa.run(picture(8, 8), "What is this?", max_new_tokens=16)
    assert state["answer"] == '{"grade": "A"}'
    two_images.run(TAXI, CAT, "Compare them.").sync()
    one, two = generations(server)
    assert "user<|end_header_id|>\n\n<image>\nWhat is this?<|eot_id|>" in one["text"]
    assert isinstance(one["image_data"], str)
    assert two["text"].count("<image>\n") == len(two["image_data"]) == 2
    assert one["sampling_params"]["stop"] == ["<|eot_id|>"]


def test_branches_about_one_image_on_a_server(server: Stub, llava: sgl.RuntimeEndpoint) -> None:
    state = image_judge.run(CAT, "A cat.")
    assert (state["related"], state["judgment"], state["output"]) == ("yes", ['{"grade": "A"}'] * 2, '{"grade": "A"}')
    bodies = server.bodies("/generate")
    assert len({body["image_data"] for body in bodies}) == 1  # every call has it: count, scores, hint, generations
    # Scores are of the choices and not of the whole prompt with its image, where all would look alike.
    (score,) = [body for body in bodies if isinstance(body["text"], list)]
    assert score["logprob_start_len"] == 99 - 2
    # The hint before the branches has the image, and a constraint goes beside one.
    hints = [body for body in bodies if isinstance(body["text"], str) and not body.get("stream")]
    assert len(hints) == 2
    assert generations(server)[-1]["sampling_params"]["regex"] == r'\{"grade": "[ABCD]"\}'


def test_many_images_and_questions(server: Stub, llava: sgl.RuntimeEndpoint) -> None:
    rows = [{"image": png((i, i, i)), "question": f"Question {i}"} for i in range(12)]
    states = image_qa.run_batch(rows, max_new_tokens=8, temperature=0, num_threads=4)
    assert [state.error() for state in states] == [None] * 12
    sent = {
        body["text"].partition("Question ")[2].partition("<")[0]: body["image_data"] for body in generations(server)
    }
    assert sent == {str(i): sgl.image(row["image"]).picture.base64 for i, row in enumerate(rows)}


def test_video_qa(scripted: Any, server: Stub, tmp_path: Path) -> None:
    path = str(grey_video(tmp_path / "clip.mp4", 20))
    backend = scripted("It gets lighter.")
    assert video_qa.run(num_frames=8, path=path, question="What happens?")["answer"] == "It gets lighter."
    assert len(backend.calls[-1].images[0].images) == 8
    with sgl.RuntimeEndpoint(server.url) as endpoint:
        rows = [{"num_frames": n, "path": path, "question": "What happens?"} for n in (2, 4)]
        video_qa.run_batch(rows, backend=endpoint, max_new_tokens=8)
    files = [body["image_data"].removeprefix("video:") for body in generations(server)]
    assert sorted(base64.b64decode(file).count(b"\x89PNG\r\n\x1a\n") for file in files) == [2, 4]
