"""Which of an operation's two forms runs: the Triton kernel on a CUDA device that Triton can use, else plain torch."""

from __future__ import annotations

import functools
from importlib.util import find_spec

import torch
from torch import Tensor


def uses_triton(x: Tensor) -> bool:
    """Whether tensors like `x` go to the Triton kernels."""
    return x.is_cuda and triton_works()


@functools.cache
def triton_works() -> bool:
    """Whether Triton is installed and the CUDA device has what the kernels need: bfloat16 in its matrix units."""
    return (
        torch.cuda.is_available() and find_spec("triton") is not None and torch.cuda.get_device_capability() >= (8, 0)
    )
