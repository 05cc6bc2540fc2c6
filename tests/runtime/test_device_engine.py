"""Runs the engine's device checks under Triton's interpreter, or on a GPU, where there are some more."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_support import ON_GPU, run_checks

pytest.importorskip("triton")

CHECKS = ["device_checks.py", "device_sampler_checks.py", "eight_bit_checks.py", *["shape_checks.py"] * ON_GPU]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_engine_on_the_device() -> None:
    run_checks(*map(Path(__file__).with_name, CHECKS))
