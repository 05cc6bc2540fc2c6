"""What the runtime's and kernels' tests run on: `LMNB_TEST_DEVICE=cuda` puts them on a GPU, else they use the CPU.

On a GPU, kernels are checked at real sizes; `LMNB_TEST_SHAPES=small` keeps to small ones, for a sanitizer that makes
them a hundred times slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

DEVICE = os.environ.get("LMNB_TEST_DEVICE", "cpu")
ON_GPU = DEVICE == "cuda"
LARGE = ON_GPU and os.environ.get("LMNB_TEST_SHAPES") != "small"


def run_checks(*paths: Path) -> None:
    """Run the tests in `paths` in a process of its own: on the GPU, or under Triton's interpreter, which must be chosen
    before Triton is imported. AssertionError with the end of what it printed if one fails."""
    interpret = {} if ON_GPU else {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, paths)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **interpret},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]


def _sum_in_order() -> None:
    """Have Triton's interpreter add up products in the order of the inner size. It calls a library, which may add up
    the rows of one tile in different ways, and on some machines does."""
    from triton.runtime import interpreter

    def create_dot(builder: object, a: Any, b: Any, d: Any, *precision: object) -> Any:
        left, right, total = (each.data.astype(d.data.dtype) for each in (a, b, d))
        for k in range(left.shape[-1]):
            total += left[..., :, k, None] * right[..., None, k, :]
        return interpreter.TensorHandle(total, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


if os.environ.get("TRITON_INTERPRET") == "1":
    _sum_in_order()
