# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""RMSNorm in Triton, alone or with the residual addition before it: one read and one write of each tensor."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(
    x,
    residual,
    weight,
    out,
    total_out,
    eps,
    x_stride,
    heads,
    x_head_stride,
    weight_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token, head = row // heads, row % heads
    columns = tl.arange(0, BLOCK)
    ok = columns < SIZE
    w = tl.load(weight + head * weight_stride + columns, mask=ok, other=0.0).to(tl.float32)
    wide = tl.load(x + token * x_stride + head * x_head_stride + columns, mask=ok, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(residual + row * SIZE + columns, mask=ok, other=0.0).to(tl.float32)
        rounded = wide.to(total_out.dtype.element_ty)
        tl.store(total_out + row * SIZE + columns, rounded, mask=ok)
        wide = rounded.to(tl.float32)
    mean_square = tl.sum(wide * wide, 0) / SIZE
    normed = (wide * tl.rsqrt(mean_square + eps)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * SIZE + columns, (normed * w).to(out.dtype.element_ty), mask=ok)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    size = x.shape[-1]
    out = x.new_empty(x.shape)
    total = x.new_empty(x.shape) if residual is not None else out
    heads = x.shape[1] if x.dim() == 3 else 1
    rows = x.shape[0] * heads
    block = triton.next_power_of_2(size)
    if rows:
        _rms_norm[(rows,)](
            x,
            residual if residual is not None else x,
            weight,
            out,
            total,
            eps,
            x.stride(0),
            heads,
            x.stride(1) if x.dim() == 3 else 0,
            weight.stride(0) if weight.dim() == 2 else 0,
            SIZE=size,
            BLOCK=block,
            ADD=residual is not None,
            num_warps=min(8, max(1, block // 512)),
        )
    return out, total


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, D] with weight [D], or x [T, H, D] (any strides but the last) with weight [D] or [H, D]."""
    return _launch(x, None, weight, eps)[0]


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of `x + residual` [T, D], and that sum. `residual` must be contiguous."""
    return _launch(x, residual.contiguous(), weight, eps)
