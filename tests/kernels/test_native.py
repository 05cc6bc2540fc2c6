"""The compiled kernels: built once, found again, and done without where they cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from lmnb.kernels import native


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing prepared, an empty cache, and a CPU that can."""
    monkeypatch.setattr(native, "_outcome", None)
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "_cpu_flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_cpu_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_cpu_flags", lambda: frozenset({"avx2"}))
    assert native.prepare() is None
    assert "bfloat16" in native.why_not()
    assert native.native_kernels(torch.zeros(1, dtype=torch.bfloat16)) is None


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
