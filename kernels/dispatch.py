"""Which of an operation's two forms runs: the Triton kernel on a CUDA device that Triton can use, else plain torch."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

import torch
from torch import Tensor

# Triton's interpreter runs kernels on CPU tensors, slowly: for tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def uses_triton(x: Tensor) -> bool:
    """Whether tensors like `x` go to the Triton kernels."""
    return INTERPRETED or (x.is_cuda and triton_works())


@functools.cache
def triton_works() -> bool:
    """Whether Triton is installed and the CUDA device has what the kernels need: bfloat16 in its matrix units."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability() >= (8, 0)
