"""Images and videos in programs: where they go, who inherits them, what reads them, and who refuses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from context_support import fake_runtime
from picture_support import grey_video, picture, png

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, GenerationError, ProgramError
from lmnb.language.events import ImageAdded
from lmnb.language.expressions import Image
from lmnb.language.graph import Graph

RED, BLUE = png("red"), png("blue")


@pytest.fixture
def cat(tmp_path: Path) -> str:
    path = tmp_path / "cat.png"
    path.write_bytes(RED)
    return str(path)


@sgl.function
def image_qa(s: Any, path: Any, question: str) -> None:
    s += sgl.user(sgl.image(path) + question)
    s += sgl.assistant(sgl.gen("answer"))


def digests(backend: ScriptedBackend, kind: str = "generate") -> list[list[str]]:
    return [[image.digest for image in call.images] for call in backend.calls if call.kind == kind]


def digest(data: bytes) -> str:
    image = sgl.image(data)
    assert isinstance(image, Image)
    return str(image.picture.digest)


def test_an_image_is_in_the_prompt_the_text_the_messages_and_the_events(cat: str) -> None:
    backend = ScriptedBackend("A cat.")
    state = image_qa.run(cat, "What is it?", backend=backend)
    assert state["answer"] == "A cat."
    assert state.text() == "<|user|>\n<image>What is it?<|end|>\n<|assistant|>\nA cat.<|end|>\n"
    url = {"url": f"data:image/png;base64,{sgl.image(RED).picture.base64}"}  # type: ignore[attr-defined]
    assert state.messages() == [
        {"role": "user", "content": [{"type": "image_url", "image_url": url}, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A cat."},
    ]
    assert digests(backend) == [[digest(RED)]]
    state.run.wait(30)
    (event,) = [event for event in state.run.events if isinstance(event, ImageAdded)]
    assert (event.branch, event.text, event.label) == (0, "<image>", "[image 4×3 png]")
    assert (event.num_bytes, event.digest, event.frames) == (len(RED), digest(RED), 1)
    assert event.preview.startswith("data:image/png;base64,")
    assert sgl.SavedRun.from_json(state.run.to_json()).events == state.run.events


def test_several_images_stand_where_the_program_puts_them() -> None:
    @sgl.function
    def compare(s: Any) -> None:
        s += sgl.system("Look closely.")
        with s.user():
            s += "  First "
            s += sgl.image(RED) + " then " + sgl.image(picture(colour="blue"))
            s += sgl.image(np.zeros((3, 2, 2), np.uint8))
            s += "?"
        s += sgl.assistant(sgl.gen("a"))
        s += sgl.user(sgl.image(RED))
        s += sgl.assistant(sgl.select("b", ["yes", "no"]))

    backend = ScriptedBackend("ok")
    state = compare.run(backend=backend)
    assert "  First <image> then <image><image>?" in state.text()
    contents = [message["content"] for message in state.messages()]
    assert contents[0] == "Look closely."
    assert [part["type"] for part in contents[1]] == ["text", "image_url", "text", "image_url", "image_url", "text"]
    assert [part["text"] for part in contents[1] if "text" in part] == ["First ", " then ", "?"]
    assert [part["type"] for part in contents[3]] == ["image_url"]
    assert [len(images) for images in digests(backend) + digests(backend, "score")] == [3, 4]


def test_branches_inherit_images_and_do_not_share_new_ones() -> None:
    @sgl.function
    def look(s: Any) -> None:
        s += sgl.user(sgl.image(RED))
        forks = s.fork(2)
        forks[0] += sgl.user(sgl.image(BLUE))
        forks += sgl.assistant(sgl.gen("a"))
        forks.join()
        with s.copy() as twin:
            twin += sgl.assistant(sgl.gen("b"))
        s += sgl.assistant(sgl.gen("c"))

    backend = ScriptedBackend("ok")
    state = look.run(backend=backend)
    state.sync()
    red, blue = digest(RED), digest(BLUE)
    assert sorted(digests(backend)) == sorted([[red, blue], [red], [red], [red]])
    assert digests(backend, "commit") == [[red]]  # the hint before the fork has the image in it


def test_a_join_of_texts_says_images_again_in_their_places() -> None:
    @sgl.function
    def album(s: Any, approximate: bool) -> None:
        s += "Album:"
        forks = s.fork(2)
        forks += lambda i: f" {i} " + sgl.image([RED, BLUE][i])
        forks.join("concate_and_append", approximate=approximate)
        s += " end" + sgl.gen("x")

    for approximate in (False, True):
        backend = ScriptedBackend("!", concatenates_caches=True)
        state = album.run(approximate, backend=backend)
        assert state.text() == "Album: 0 <image> 1 <image> end!"
        assert digests(backend)[-1] == [digest(RED), digest(BLUE)]
        state.run.wait(30)
        assert [event.branch for event in state.run.events if isinstance(event, ImageAdded)].count(0) == 2


def test_an_image_is_encoded_once_for_all_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    node = sgl.image(RED)

    @sgl.function
    def look(s: Any) -> None:
        s += node
        forks = s.fork(3)
        forks += sgl.gen("a")
        forks.join()

    backend = ScriptedBackend("ok")
    look.run_batch([{}, {}], backend=backend)
    images = {id(image) for call in backend.calls for image in call.images}
    assert images == {id(node.picture)}  # type: ignore[attr-defined]


def test_a_scope_holds_what_stands_for_an_image() -> None:
    @sgl.function
    def look(s: Any) -> None:
        with s.var_scope("all"):
            s += "a" + sgl.image(RED) + "b"

    assert look.run(backend=ScriptedBackend())["all"] == "a<image>b"


def test_a_finished_state_takes_images_too(cat: str) -> None:
    backend = ScriptedBackend("ok")
    state = image_qa.run(cat, "?", backend=backend)
    state += sgl.user(sgl.image(BLUE)) + sgl.assistant(sgl.gen("more"))
    assert state["more"] == "ok"
    assert digests(backend)[-1] == [digest(RED), digest(BLUE)]


# What is refused, and where


def test_a_missing_file_is_an_error_at_its_statement(cat: str) -> None:
    backend = ScriptedBackend("ok")
    with pytest.raises(ArgumentError, match=r"there is no image '.*dog\.png'"):
        image_qa.run(cat.replace("cat", "dog"), "?", backend=backend)
    assert backend.calls == []
    rows = image_qa.run_batch([{"path": cat, "question": "?"}, {"path": "dog.png", "question": "?"}], backend=backend)
    assert rows[0]["answer"] == "ok"
    assert "dog.png" in str(rows[1].error())


@pytest.mark.parametrize("expression", [lambda: sgl.image(RED), lambda: "Look: " + sgl.image(RED)])
def test_the_local_text_model_refuses_images_at_the_statement(expression: Any) -> None:
    reached: list[str] = []

    @sgl.function
    def look(s: Any) -> None:
        s += "Hello"
        reached.append("before")
        s += expression()
        reached.append("behind")

    with fake_runtime() as runtime, pytest.raises(ArgumentError, match=r"Runtime reads no images.*RuntimeEndpoint"):
        look.run(backend=runtime)
    assert reached == ["before"]


def test_an_f_string_does_not_swallow_an_image() -> None:
    with pytest.raises(ProgramError, match="f-string"):
        f"{sgl.image(RED)}"


@pytest.mark.parametrize("num_frames", [0, -1, 1.5, "3", None])
def test_a_video_has_at_least_one_frame(num_frames: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="num_frames must be"):
        sgl.video(str(tmp_path / "a.mp4"), num_frames)


# Videos


def test_a_video_is_one_thing_in_the_text_and_its_frames_in_messages(tmp_path: Path) -> None:
    path = grey_video(tmp_path / "a.mp4", 20)

    @sgl.function
    def watch(s: Any) -> None:
        s += sgl.user(sgl.video(path, 4) + "What happens?")
        s += sgl.assistant(sgl.gen("answer"))

    backend = ScriptedBackend("It gets lighter.")
    state = watch.run(backend=backend)
    assert state["answer"] == "It gets lighter."
    assert "<image>What happens?" in state.text()
    assert [part["type"] for part in state.messages()[0]["content"]] == ["image_url"] * 4 + ["text"]
    state.run.wait(30)
    (event,) = [event for event in state.run.events if isinstance(event, ImageAdded)]
    assert event.label == "[video 64×48 png, 4 frames]"


def test_a_short_video_says_so(tmp_path: Path) -> None:
    path = grey_video(tmp_path / "a.mp4", 3)
    with pytest.warns(UserWarning, match="has 3 frames, not 8") as warned:
        node = sgl.video(str(path), 8)
    assert warned[0].filename == __file__
    assert len(node.picture.frames) == 3  # type: ignore[attr-defined]


# Graphs


def test_a_graph_takes_images_as_arguments_and_keeps_constant_ones(cat: str, tmp_path: Path) -> None:
    film = grey_video(tmp_path / "a.mp4", 20)

    @sgl.function
    def look(s: Any, path: str, clip: str, frames: int) -> None:
        s += sgl.user("Compare " + sgl.image(path) + " with " + sgl.image(BLUE))
        s += sgl.user(sgl.video(clip, frames))
        s += sgl.assistant(sgl.gen("answer"))

    graph = look.compile()
    assert "image path" in str(graph)
    assert "video clip in frames frames" in str(graph)
    assert "ImageData(image/png, 4×3" in str(graph)
    assert graph.to_dot().count("image") >= 2
    assert [type(node).__name__ for node in graph.prefix()] == ["RoleBegin", "Text"]
    for each in (graph, Graph.from_json(graph.to_json())):
        backend = ScriptedBackend("ok")
        state = each.run(cat, str(film), 3, backend=backend)
        assert state["answer"] == "ok"
        (images,) = [call.images for call in backend.calls if call.kind == "generate"]
        assert [image.digest for image in images[:2]] == [digest(RED), digest(BLUE)]
        assert len(images[2].images) == 3
    film_graph = look.compile(clip=str(film), frames=2)
    assert json.loads(film_graph.to_json())["name"] == "look"
    again = Graph.from_json(film_graph.to_json())
    backend = ScriptedBackend("ok")
    assert again.run(cat, backend=backend)["answer"] == "ok"
    with pytest.raises((ArgumentError, GenerationError), match="there is no image"):
        graph.run("dog.png", str(film), 3, backend=ScriptedBackend("ok"))


def test_what_rows_begin_with_ends_at_an_image(cat: str) -> None:
    long = "Answer in one word. " * 10

    @sgl.function
    def look(s: Any, path: str) -> None:
        s += sgl.system(long)
        s += sgl.user(sgl.image(path) + "What is it?")
        s += sgl.assistant(sgl.gen("answer"))

    backend = ScriptedBackend("ok")
    rows = look.run_batch([{"path": cat}] * 3, backend=backend)
    assert [row["answer"] for row in rows] == ["ok"] * 3
    assert backend.prompts("commit") == [f"<|system|>\n{long}<|end|>\n<|user|>\n"]


def test_a_branch_from_a_token_has_the_images_before_and_after_it() -> None:
    @sgl.function
    def look(s: Any) -> None:
        s += sgl.user(sgl.image(RED) + "What is it?")
        s += sgl.assistant(sgl.gen("first")) + sgl.user(sgl.image(BLUE) + "And this?")
        s += sgl.assistant(sgl.gen("second"))

    backend = ScriptedBackend({"first": "a red thing", "second": "a blue one"})
    state = look.run(backend=backend)
    state.sync()
    branch = state.branch_at("first", 1, " green")
    assert branch["second"] == "a blue one"
    assert "<image>What is it?" in branch.text()
    assert digests(backend)[-1] == [digest(RED), digest(BLUE)]
    assert [len(message["content"]) for message in branch.messages()[::2]] == [2, 2]  # an image and a text each
