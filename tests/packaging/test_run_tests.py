"""scripts/run_tests.py: what fails once is told, what fails twice or often fails the run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/run_tests.py"
SUPPORT = f"pythonpath={ROOT / 'tests/support'}"  # for the tests' conftest.py
WAYS = pytest.mark.parametrize("way", [(), ("--side-by-side",)], ids=["alone", "side by side"])
ONCE = """
def test_once(request):
    ran = request.path.with_name("ran")
    if not ran.exists():
        ran.touch()
        raise AssertionError("the first time")
"""
TWICE = "def test_twice():\n    raise AssertionError('each time')\n"
OFTEN = "import pytest\n@pytest.mark.parametrize('i', range(4))" + ONCE.replace("request):", "request, i):").replace(
    '"ran"', 'f"ran {i}"'
)
GARBAGE = """
class Garbage:
    def __init__(self):
        self.itself = self

    def __del__(self):
        raise ValueError("no good end")

def test_garbage():
    Garbage()
"""
PASSES = "def test_that_passes():\n    pass\n"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(PASSES + source, "utf-8")
    command = [sys.executable, str(SCRIPT), "-q", "--rootdir", str(folder), "test_sample.py", *arguments]
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # others take a second to load
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **plugins})


@WAYS
def test_what_fails_once_is_told(tmp_path: Path, way: tuple[str, ...]) -> None:
    done = run(tmp_path, ONCE, *way)
    assert done.returncode == 0, done.stdout
    assert "the first time" in done.stdout
    assert "FLAKY, passed only when run once more (see above): test_sample.py::test_once" in done.stdout
    assert "1 passed, 1 deselected" in done.stdout
    assert "FLAKY" not in run(tmp_path, ONCE, *way).stdout


@pytest.mark.parametrize("source", [TWICE, ONCE + TWICE])
def test_what_fails_twice_fails(tmp_path: Path, source: str) -> None:
    done = run(tmp_path, source)
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("each time") >= 2
    assert "FLAKY" not in done.stdout


def test_many_failures_are_no_chance(tmp_path: Path) -> None:
    done = run(tmp_path, OFTEN)
    assert done.returncode == 1, done.stdout
    assert "4 failed" in done.stdout
    assert "once more" not in done.stdout


@pytest.mark.parametrize(("source", "arguments", "code"), [("def broken(:\n", (), 2), ("", ("-k", "nothing"), 5)])
def test_other_ends_are_pytests(tmp_path: Path, source: str, arguments: tuple[str, ...], code: int) -> None:
    assert run(tmp_path, source, *arguments).returncode == code


@WAYS
def test_a_process_that_ends_is_no_chance(tmp_path: Path, way: tuple[str, ...]) -> None:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    crash = "def test_crash():\n    __import__('os').abort()\n"
    done = run(tmp_path, crash, *way, "-o", SUPPORT)
    assert done.returncode not in (0, 1), done.stdout
    assert "once more" not in done.stdout


@WAYS
def test_what_garbage_says_in_its_end_is_heard(tmp_path: Path, way: tuple[str, ...]) -> None:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    done = run(tmp_path, GARBAGE, *way, "-o", SUPPORT, "-W", "error::pytest.PytestUnraisableExceptionWarning")
    assert done.returncode == 1, done.stdout
    assert "no good end" in done.stdout


def test_a_tests_name_must_be_the_same_in_every_process(script: ModuleType, tmp_path: Path) -> None:
    if script._num_processes() == 1:
        pytest.skip("one core, or little memory")
    named = "import os, pytest\n@pytest.mark.parametrize('pid', [os.getpid()])\ndef test_named(pid):\n    pass\n"
    done = run(tmp_path, named, "--side-by-side")
    assert done.returncode == 1, done.stdout
    assert "Different tests were collected" in done.stdout
    assert "once more" not in done.stdout


def test_one_process_for_each_core_if_there_is_memory(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_free_bytes", lambda: 13 << 30)
    for cores, processes in ((1, 1), (2, 2), (64, 3)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        assert script._num_processes() == processes
    monkeypatch.setattr(script, "_free_bytes", lambda: 1 << 30)
    assert script._num_processes() == 1


def test_a_containers_limit_counts(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (tmp_path / "none", tmp_path / "max", tmp_path / "limit")
    files[1].write_text("max\n", "ascii")
    files[2].write_text("1048576\n", "ascii")
    monkeypatch.setattr(script, "_LIMIT_FILES", files)
    assert script._free_bytes() == 1 << 20
