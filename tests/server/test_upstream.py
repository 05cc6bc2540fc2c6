"""SGLang's own released frontend drives our server, in an environment of its own.

It runs with `pytest -m upstream`, which installs that frontend (without the engine that it comes with) once, or with
LMNB_UPSTREAM_PYTHON naming a Python that has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import upstream_programs

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
