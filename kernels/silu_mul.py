"""The gated activation between a decoder's MLP projections: silu(gate) * up (SwiGLU, Shazeer 2020)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lmnb.kernels.dispatch import uses_triton
from lmnb.kernels.native import native_kernels


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 I], gate in the first half of each row and up in the second: [T, I]."""
    if uses_triton(gate_up):
        from lmnb.kernels.silu_mul_triton import silu_mul_triton

        return silu_mul_triton(gate_up)
    native = native_kernels(gate_up)
    if native is not None and gate_up.is_contiguous():
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, size, dtype=gate_up.dtype)
        native.call("silu_mul", rows, gate_up.data_ptr(), out.data_ptr(), rows, size)
        return out
    return silu_mul_reference(gate_up)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """The activation in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
