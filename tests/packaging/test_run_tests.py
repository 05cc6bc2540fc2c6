"""scripts/run_tests.py: what fails once is told, what fails twice or often fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/run_tests.py"
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
PASSES = "def test_that_passes():\n    pass\n"


def run(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(PASSES + source, "utf-8")
    command = [sys.executable, str(SCRIPT), "-q", "--rootdir", str(folder), "test_sample.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_what_fails_once_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, ONCE)
    assert done.returncode == 0, done.stdout
    assert "the first time" in done.stdout
    assert "FLAKY, passed only when run once more (see above): test_sample.py::test_once" in done.stdout
    assert "1 passed, 1 deselected" in done.stdout
    assert "FLAKY" not in run(tmp_path, ONCE).stdout


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
