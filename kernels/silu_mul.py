"""The gated activation between a decoder's MLP projections: silu(gate) * up (SwiGLU, Shazeer 2020)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from lmnb.kernels.dispatch import uses_triton


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 I], gate in the first half of each row and up in the second: [T, I]."""
    if uses_triton(gate_up):
        from lmnb.kernels.silu_mul_triton import silu_mul_triton

        return silu_mul_triton(gate_up)
    return silu_mul_reference(gate_up)


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """The activation in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
