# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""A weight matrix times one vector in Triton: bound by the speed of memory, so each program streams a few rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _matvec(x, weight, bias, out, num_out, SIZE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
            BIAS: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    row_ok = rows < num_out
    acc = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    at = weight + rows.to(tl.int64)[:, None] * SIZE
    for start in tl.static_range(0, SIZE, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        if SIZE % BLOCK_K == 0:
            w = tl.load(at + columns[None, :], mask=row_ok[:, None], other=0.0, eviction_policy="evict_first")
            v = tl.load(x + columns)
        else:
            ok = columns < SIZE
            w = tl.load(at + columns[None, :], mask=row_ok[:, None] & ok[None, :], other=0.0)
            v = tl.load(x + columns, mask=ok, other=0.0)
        acc += w.to(tl.float32) * v.to(tl.float32)[None, :]
    total = tl.sum(acc, 1)
    if BIAS:
        total += tl.load(bias + rows, mask=row_ok, other=0.0).to(tl.float32)
    tl.store(out + rows, total.to(out.dtype.element_ty), mask=row_ok)


def matvec(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, block_r: int = 2, block_k: int = 2048, warps: int = 4
) -> Tensor:
    """x [1, in] times `weight` [out, in] (contiguous), plus bias [out] if there is one: [1, out]."""
    num_out, size = weight.shape
    out = x.new_empty(1, num_out)
    block_k = min(block_k, triton.next_power_of_2(size))
    _matvec[(triton.cdiv(num_out, block_r),)](
        x, weight, bias if bias is not None else x, out, num_out, SIZE=size, BLOCK_R=block_r, BLOCK_K=block_k,
        BIAS=bias is not None, num_warps=warps,
    )  # fmt: skip
    return out
