"""scripts/json_schema_suite.py: which folders it takes, and what it says of others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/json_schema_suite.py"
TEST = {"description": "a whole number", "data": 1, "valid": True}
CASE = {"description": "integers", "schema": {"type": "integer"}, "tests": [TEST]}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The suite's own folder, with one test."""
    for name, content in (
        ("remotes/draft2020-12/integer.json", {"type": "integer"}),
        ("tests/draft2020-12/type.json", [CASE]),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content), "utf-8")
    return tmp_path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("path", ["", "tests", "tests/draft2020-12", "tests/draft2020-12/type.json"])
def test_the_drafts_tests_are_found(suite: Path, path: str) -> None:
    done = run(suite / path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].split() == ["total", "1", "0", "1", "0", "0", "0"]


@pytest.mark.parametrize("path", ["remotes", "nowhere", "remotes/draft2020-12/integer.json"])
def test_other_folders_are_refused_in_a_line(suite: Path, path: str) -> None:
    done = run(suite / path)
    assert done.returncode == 2
    assert "give the suite's folder, which has tests/draft2020-12 in it" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_usage_names_what_there_is() -> None:
    assert "--engine" not in run("--help").stdout
