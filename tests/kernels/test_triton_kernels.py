"""Runs `triton_checks.py` under Triton's interpreter, or on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_support import run_checks

pytest.importorskip("triton")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_triton_kernels() -> None:
    run_checks(Path(__file__).with_name("triton_checks.py"))
