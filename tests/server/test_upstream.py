"""SGLang's own released frontend drives our server, in an environment of its own.

It runs with `pytest -m upstream`, which installs that frontend (without the engine that it comes with) once, or with
LMNB_UPSTREAM_PYTHON naming a Python that has it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import upstream_images
import upstream_programs
from picture_support import png
from stub_server import Answer, Asked, stub_server

import lmnb
from lmnb.backends.remote.endpoint import RuntimeEndpoint
from lmnb.env import cache_dir
from lmnb.server import Server

RELEASE = "sglang==0.5.3"
# What its frontend imports; the package's own list is that of its engine.
NEEDED = ["aiohttp", "ipython", "numpy", "pybase64", "pydantic", "requests", "tqdm"]


@pytest.fixture(scope="module")
def upstream_python(request: pytest.FixtureRequest) -> str:
    given = os.environ.get("LMNB_UPSTREAM_PYTHON")
    if given:
        return given
    if "upstream" not in str(request.config.getoption("-m")):
        pytest.skip(f"installs {RELEASE} (200 MB with what it imports): run pytest -m upstream")
    folder = cache_dir() / "upstream" / RELEASE
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        _install(folder, python)
        (folder / "ready").touch()
    return str(python)


def _install(folder: Path, python: Path) -> None:
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", "--no-deps", RELEASE],
        [str(python), "-m", "pip", "install", "-q", *NEEDED],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{RELEASE} cannot be installed here: {done.stderr.strip()[-300:]}")


@pytest.mark.upstream
def test_images_reach_a_server_as_that_frontend_sends_them(upstream_python: str, tmp_path: Path) -> None:
    def result(**meta: Any) -> Any:
        known = {"id": "r", "finish_reason": {"type": "stop", "matched": None}, "prompt_tokens": 9}
        return {"text": "A", "meta_info": {**known, "completion_tokens": 1, **meta}}

    def rule(asked: Asked) -> Answer:
        if asked.path == "/get_model_info":
            return Answer({"model_path": "stub/llava-v1.6-34b", "tokenizer_path": "x", "is_generation": True})
        if asked.json.get("stream"):
            return Answer(events=(result(),))
        texts = asked.json["text"]
        if isinstance(texts, str):
            return Answer(result())
        rows = [[[None, 1, "?"], [-1.0, 2, ":"], [-1.0 - i, 3 + i, text[-2:]]] for i, text in enumerate(texts)]
        return Answer([result(input_token_logprobs=row, output_token_logprobs=[]) for row in rows])

    path = tmp_path / "red.png"
    path.write_bytes(png("red", 8, 8))
    with stub_server(rule) as stub:
        command = [upstream_python, upstream_images.__file__, stub.url, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-3000:]
        theirs = stub.bodies("/generate")
        stub.asked.clear()
        try:
            with RuntimeEndpoint(stub.url) as endpoint:
                upstream_images.run_all(lmnb, endpoint, str(path))
        finally:
            lmnb.set_default_backend(None)
        ours = stub.bodies("/generate")
    for body in ours:  # ours streams, and can be cancelled
        body.pop("stream", None)
        body.pop("rid", None)
    assert [json.dumps(body) for body in ours] == [json.dumps(body) for body in theirs]
    assert {body["image_data"] for body in ours} == {base64.b64encode(path.read_bytes()).decode()}


@pytest.mark.upstream
@pytest.mark.model
@pytest.mark.timeout(600)
def test_both_frontends_say_the_same(embedded_runtime: Any, upstream_python: str) -> None:
    with Server(embedded_runtime, api_key="k") as server:
        done = subprocess.run(
            [upstream_python, upstream_programs.__file__, server.url, "k"], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        theirs = json.loads(done.stdout.splitlines()[-1])["found"]
        try:
            with RuntimeEndpoint(server.url, api_key="k", chat_template_name="chatml") as endpoint:
                ours = upstream_programs.run_all(lmnb, endpoint)
        finally:
            lmnb.set_default_backend(None)
        assert theirs == ours
        assert "Paris" in ours["few_shot"]
        assert ours["regex"].count(".") == 3
        assert len(ours["fork"]) == 2
