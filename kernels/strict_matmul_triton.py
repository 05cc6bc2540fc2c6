# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""A product whose rows do not depend on each other, nor on how many there are, to the last bit, in Triton.

Libraries split a product's sums in another way for each number of rows. Here every element is one sum over the inner
size, in order, by one program: what is batch-invariant in H. He et al., "Defeating nondeterminism in LLM inference"
(2025). Few rows and many have tiles of different sizes, which share the order of the sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEW_ROWS = 64


@triton.jit(do_not_specialize=["num_rows"])
def _strict_matmul(x, weight, bias, out, num_rows, num_out, SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr,
                   STAGES: tl.constexpr):  # fmt: skip
    # Programs that run together share rows and columns, so that what one reads the others find in the L2 cache.
    program = tl.program_id(0)
    tiles_m = tl.cdiv(num_rows, BLOCK_M)
    tiles_n = tl.cdiv(num_out, BLOCK_N)
    first = program // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    inside = program % (GROUP * tiles_n)
    rows = (first + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (inside // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_ok, column_ok = rows < num_rows, columns < num_out
    x_at = x + rows.to(tl.int64)[:, None] * SIZE
    weight_at = weight + columns.to(tl.int64)[None, :] * SIZE
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, SIZE, BLOCK_K, num_stages=STAGES):
        inner = start + tl.arange(0, BLOCK_K)
        if SIZE % BLOCK_K == 0:
            a = tl.load(x_at + inner[None, :], mask=row_ok[:, None], other=0.0)
            b = tl.load(weight_at + inner[:, None], mask=column_ok[None, :], other=0.0)
        else:
            ok = inner < SIZE
            a = tl.load(x_at + inner[None, :], mask=row_ok[:, None] & ok[None, :], other=0.0)
            b = tl.load(weight_at + inner[:, None], mask=column_ok[None, :] & ok[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    if BIAS:
        acc += tl.load(bias + columns, mask=column_ok, other=0.0).to(tl.float32)[None, :]
    target = out + rows.to(tl.int64)[:, None] * num_out + columns[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=row_ok[:, None] & column_ok[None, :])


def strict_matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times `weight` [out, in] (contiguous), plus bias [out] if there is one: [T, out]. A row of the result
    has the same bits whatever T is and wherever the row stands."""
    num_rows, num_out, size = len(x), *weight.shape
    out = x.new_empty(num_rows, num_out)
    x = x.contiguous()
    if x.dtype == torch.float32:
        block_m, block_n, block_k, stages, warps = 32, 32, 32, 2, 4
    elif num_rows <= _FEW_ROWS:
        block_m, block_n, block_k, stages, warps = 64, 32, 64, 6, 4
    else:
        block_m, block_n, block_k, stages, warps = 128, 128, 64, 3, 8
    grid = (triton.cdiv(num_rows, block_m) * triton.cdiv(num_out, block_n),)
    _strict_matmul[grid](
        x, weight, bias if bias is not None else x, out, num_rows, num_out, SIZE=size, BLOCK_M=block_m,
        BLOCK_N=block_n, BLOCK_K=block_k, GROUP=8, BIAS=bias is not None, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    return out
