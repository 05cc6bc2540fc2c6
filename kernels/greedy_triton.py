# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Greedy choice in Triton: the likeliest token of each row, the lowest id among equals; NaN counts as infinity."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _block_best(logits, best, index, row_stride, num_tokens, num_blocks, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    ok = columns < num_tokens
    value = tl.load(logits + row * row_stride + columns, mask=ok, other=float("-inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)
    peak = tl.max(value, 0)
    first = tl.min(tl.where((value == peak) & ok, columns, num_tokens), 0)
    tl.store(best + row * num_blocks + block, peak)
    tl.store(index + row * num_blocks + block, first)


@triton.jit
def _row_best(best, index, chosen, chosen_best, last_tokens, rows, num_blocks, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    blocks = tl.arange(0, BLOCK)
    ok = blocks < num_blocks
    value = tl.load(best + row * num_blocks + blocks, mask=ok, other=float("-inf"))
    where = tl.load(index + row * num_blocks + blocks, mask=ok, other=2147483647)
    peak = tl.max(value, 0)
    token = tl.min(tl.where(value == peak, where, 2147483647), 0)
    tl.store(chosen + row, token)
    tl.store(chosen_best + row, peak)
    tl.store(last_tokens + tl.load(rows + row).to(tl.int64), token)


def greedy(logits: Tensor, num_tokens: int, last_tokens: Tensor, rows: Tensor) -> Tensor:
    """The likeliest of the first `num_tokens` ids in each row of `logits` [L, V].

    int32 [2, L], so that one copy takes all of it to the host: the ids, and the bits of their float32 logits. Row
    i's id is also kept in `last_tokens[rows[i]]`.
    """
    num_rows = len(logits)
    num_blocks = triton.cdiv(num_tokens, _BLOCK)
    best = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=logits.device)
    index = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=logits.device)
    result = torch.empty(2, num_rows, dtype=torch.int32, device=logits.device)
    _block_best[(num_rows, num_blocks)](
        logits, best, index, logits.stride(0), num_tokens, num_blocks, BLOCK=_BLOCK, num_warps=4
    )
    _row_best[(num_rows,)](
        best,
        index,
        result[0],
        result[1].view(torch.float32),
        last_tokens,
        rows,
        num_blocks,
        BLOCK=triton.next_power_of_2(num_blocks),
        num_warps=1,
    )
    return result
