"""The compiled kernels: built once, found again, and done without where they cannot be."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lmnb.kernels import native

# Each of the lanes of `lanes.h`, and the matrix unit of `amx.h`: what makes a compiler choose them, and what a CPU must
# have to run them. Compiled for a unit that the CPU has not, or that its system does not allow, lanes go on alone.
_LANES = {
    "lanes_avx2": ("-mno-avx512f", set()),
    "lanes_avx512_fma": ("-mavx512bw -mavx512vl -mno-avx512bf16", {"avx512bw", "avx512vl"}),
    "lanes_avx512_bf16": ("-mavx512bw -mavx512vl -mavx512bf16 -mno-amx-tile", {"avx512bw", "avx512vl", "avx512_bf16"}),
    "amx": (
        "-mavx512bw -mavx512vl -mavx512bf16 -mamx-tile -mamx-bf16",
        {"avx512bw", "avx512vl", "avx512_bf16"},
    ),
}
_CPU_FLAGS = native._cpu_flags()
_TRY_PRODUCTS = """
import sys
from lmnb.kernels import native, quantized_linear
native._FLAGS = ("-O0", *native._FLAGS[1:])  # a fifth of the time
if native.prepare() is None: sys.exit(native.why_not())
if "run" in sys.argv: print([quantized_linear._agrees(quantized_linear.NativeProduct, bits) for bits in (4, 8)])
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing prepared, an empty cache, and a CPU that can."""
    monkeypatch.setattr(native, "_outcome", None)
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "_cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"}))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("flags", [set(), {"sse4_2"}, {"avx2", "fma"}, {"avx512f", "avx512_bf16"}])
def test_a_cpu_of_another_kind(flags: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_cpu_flags", lambda: frozenset(flags))
    assert native.prepare() is None
    assert "AVX2" in native.why_not()
    assert native.native_kernels(torch.zeros(1, dtype=torch.bfloat16)) is None


@pytest.mark.parametrize("lanes", _LANES)
def test_every_kind_of_lanes(lanes: str, tmp_path: Path) -> None:
    """They compile, and multiply rightly where the CPU can run them; in a process of its own, which has one library."""
    compiler = shutil.which("g++")
    if compiler is None or not native._CPU_FLAGS <= _CPU_FLAGS:
        pytest.skip("not g++ on an x86 CPU")
    options, needed = _LANES[lanes]
    runs = needed <= _CPU_FLAGS
    done = subprocess.run(
        [sys.executable, "-c", _TRY_PRODUCTS, *(["run"] if runs else [])],
        env={**os.environ, "CXX": f"{shlex.quote(compiler)} {options}", "LMNB_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not runs or done.stdout.strip() == "[True, True]"


def test_a_unit_that_is_there_and_not_used_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernels:
        why = "which this system does not allow"

        def why_no_matrix_unit(self) -> str:
            return self.why

    assert native.unused_unit() == ""  # nobody has asked for kernels yet
    monkeypatch.setattr(native, "_outcome", native._Outcome(Kernels(), ""))  # type: ignore[arg-type]
    assert native.unused_unit() == ""  # the CPU has none
    monkeypatch.setattr(native, "_cpu_flags", lambda: frozenset({"avx2", "amx_tile", "amx_bf16"}))
    assert native.unused_unit() == "without AMX, which this system does not allow"
    Kernels.why = ""
    assert native.unused_unit() == ""


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert native.prepare() is None
    assert native.why_not() == "there is no C++ compiler (g++) here"


def test_a_compiler_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = 'case "$*" in *--version*) echo 1;; *) echo "error: no such instruction" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", refusing))
    assert native.prepare() is None
    assert "no such instruction" in native.why_not()
    assert not list((tmp_path / "kernels").iterdir())


def test_a_compiler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    assert native.prepare() is None
    assert "missing" in native.why_not()


@pytest.mark.parametrize("folder", ["tools", "my tools"])
@pytest.mark.parametrize("words", ["{}", "{} -Wall", "env {}"])
def test_a_compiler_may_bring_options(folder: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / folder).mkdir()
    refusing = 'case "$*" in *--version*) echo 1;; *) echo "error: asked for $*" >&2; exit 1;; esac'
    path = script(tmp_path / folder / "cxx", refusing)
    monkeypatch.setenv("CXX", words.format(path if words == "{}" else shlex.quote(path)))
    assert native.prepare() is None
    assert "refused the kernels (error: asked for " in native.why_not()
    assert ("-Wall" in native.why_not()) == ("-Wall" in words)


def test_a_compiler_that_is_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ 'open")
    assert native.prepare() is None
    assert "No closing quotation" in native.why_not()


def test_a_library_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    useless = 'case "$*" in *--version*) echo 1;; *) for last; do :; done; echo nonsense > "$last";; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", useless))
    assert native.prepare() is None
    assert "cannot be built or loaded" in native.why_not()


def test_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(native, "_outcome", None)
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path))
    if native.prepare() is None:
        pytest.skip(native.why_not())
    (library,) = (tmp_path / "kernels").iterdir()
    made = library.stat().st_mtime_ns
    monkeypatch.setattr(native, "_outcome", None)
    assert native.prepare() is not None
    assert library.stat().st_mtime_ns == made
    assert native.native_kernels(torch.zeros(1, dtype=torch.bfloat16)) is not None
    assert native.native_kernels(torch.zeros(1)) is None
    whole = library.read_bytes()
    part = tmp_path / "part"  # as a machine may leave it that loses its power
    part.write_bytes(whole[:1000])
    part.replace(library)
    monkeypatch.setattr(native, "_outcome", None)
    assert native.prepare() is not None
    assert [each.stat().st_size for each in library.parent.iterdir()] == [len(whole)]


def test_a_compiler_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has started ends with it."""
    started = tmp_path / "started"
    slow = f'case "$*" in *--version*) echo 1;; *) sleep 600 & echo $! > {shlex.quote(str(started))}; wait;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", slow))
    monkeypatch.setattr(native, "_BUILD_SECONDS", 5.0)
    assert native.prepare() is None
    assert "did not end" in native.why_not()
    helper = started.read_text("utf-8").strip()
    deadline = time.monotonic() + 30
    while _runs(helper):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
