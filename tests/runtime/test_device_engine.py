"""Runs `device_checks.py` in a process of its own: under Triton's interpreter, or on the GPU that
`LMNB_TEST_DEVICE=cuda` asks for (the interpreter must be chosen before Triton is imported)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.timeout(600)
def test_engine_on_the_device() -> None:
    interpret = {} if os.environ.get("LMNB_TEST_DEVICE") == "cuda" else {"TRITON_INTERPRET": "1"}
    checks = Path(__file__).with_name("device_checks.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(checks)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **interpret},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]
