# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""silu(gate) * up in Triton: one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _silu_mul(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = columns < SIZE
    at = gate_up + row * (2 * SIZE) + columns
    gate = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(at + SIZE, mask=ok, other=0.0).to(tl.float32)
    act = (gate * tl.sigmoid(gate)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * SIZE + columns, (act * up).to(out.dtype.element_ty), mask=ok)


def silu_mul_triton(gate_up: Tensor) -> Tensor:
    """See `silu_mul`; `gate_up` must be contiguous."""
    num_tokens, width = gate_up.shape
    size = width // 2
    out = gate_up.new_empty(num_tokens, size)
    block = min(2048, triton.next_power_of_2(size))
    if num_tokens:
        _silu_mul[(num_tokens, triton.cdiv(size, block))](
            gate_up, out, SIZE=size, BLOCK=block, num_warps=max(1, min(8, block // 256))
        )
    return out
