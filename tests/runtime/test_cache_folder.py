"""The cache folder may be full, or below a home folder that nobody knows; the working folder may be gone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs
import pytest
from engine_support import TOKENIZER
from gguf_support import TOKENS, write_gguf
from model_support import random_model
from safetensors import SafetensorError

from lmnb.env import cache_dir
from lmnb.errors import ArgumentError, ModelNotFoundError
from lmnb.kernels import native
from lmnb.runtime import grammar_disk, model_cache
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import load_model
from lmnb.runtime.model_source import resolve_source
from lmnb.runtime.reading_pool import ReadingPool
from lmnb.runtime.request import Constraint

NOBODYS = "~nobody-of-this-name/cache"
SCHEMA = Constraint("json_schema", json.dumps({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}}))
LARGE = Constraint("json_schema", json.dumps({"enum": [f"name {i}" for i in range(500)]}))


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder is deleted."""
    if sys.platform == "win32":
        pytest.skip("a folder that is used cannot be deleted there")
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    monkeypatch.chdir(folder)
    folder.rmdir()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "tiny.gguf"
    source.write_bytes(b"GGUF")
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path / "cache"))

    def convert(source: Path, folder: Path) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(ModelNotFoundError, match=r"No space left.*free some space, or set LMNB_CACHE"):
        model_cache.converted_folder(source, 1, convert)
    assert [*(tmp_path / "cache" / "models").iterdir()] == []


@pytest.mark.parametrize("said", [NOBODYS, None])
def test_a_home_that_nobody_knows(said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if said is None:
        monkeypatch.delenv("LMNB_CACHE")

        def unknown(*names: str, **options: object) -> Path:
            raise RuntimeError("could not determine the home directory")

        monkeypatch.setattr(platformdirs, "user_cache_path", unknown)
    else:
        monkeypatch.setenv("LMNB_CACHE", said)
    with pytest.raises(ArgumentError, match=r"home folder that cannot be determined: set LMNB_CACHE to a folder"):
        cache_dir()


def test_a_home_that_is_left_unsaid_is_no_folder_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMNB_CACHE")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *names, **options: Path("~/.cache/lmnb"))
    with pytest.raises(ArgumentError, match="set LMNB_CACHE"):
        cache_dir()


def test_a_model_without_a_home_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMNB_CACHE", NOBODYS)
    path = write_gguf(tmp_path / "tiny.gguf", random_model("llama", vocab_size=32))
    with pytest.raises(ArgumentError, match="set LMNB_CACHE"):
        load_model(path)


def test_what_can_be_done_without_a_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMNB_CACHE", NOBODYS)
    monkeypatch.setattr(grammar_disk, "_WORTH_SECONDS", 0.0)
    assert Grammars(TOKENIZER, 259).compile(SCHEMA).engine == "xgrammar"
    monkeypatch.setattr(native, "_outcome", None)
    monkeypatch.setattr(native, "_cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"}))
    assert native.prepare() is None
    assert native.why_not()


@pytest.mark.usefixtures("gone")
def test_constraints_are_read_without_a_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "relative", *sys.path])  # as in a notebook
    pool = ReadingPool()
    try:
        assert pool.read(LARGE) is not None
        assert len(pool.pids) == 1
    finally:
        pool.close()


@pytest.mark.usefixtures("gone")
def test_a_path_is_refused_without_a_working_folder() -> None:
    with pytest.raises(ModelNotFoundError, match=r"check the path \(here: a folder that was deleted\)"):
        resolve_source("no/such/model.gguf")


_WITHOUT_A_FOLDER = """
import os, sys, tempfile
import lmnb
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
@lmnb.function
def program(s):
    s += "x" + lmnb.gen("number", regex="[0-9]") + lmnb.gen("data", json_schema='{"enum": ["a", "b"]}', max_tokens=9)
with lmnb.Runtime(sys.argv[1], device="cpu", kv_cache=64) as runtime:
    state = program.run(backend=runtime)
    print(state["number"].isdigit(), state["data"] in ('"a"', '"b"'))
try:
    os.getcwd()
except FileNotFoundError:
    print("nor is there one now")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a folder that is used cannot be deleted there")
def test_a_program_runs_without_a_working_folder(tmp_path: Path) -> None:
    """torch and what reads constraints are imported without one."""
    source = write_gguf(tmp_path / "tiny.gguf", random_model("llama", vocab_size=len(TOKENS)))
    program = tmp_path / "program.py"
    program.write_text(_WITHOUT_A_FOLDER, "utf-8")
    done = subprocess.run([sys.executable, program, source], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines() == ["True True", "nor is there one now"], done.stderr[-3000:]
