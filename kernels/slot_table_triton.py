# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Upkeep of the slot table on the device: what a step's own tokens add, and what whole prefixes bring."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["num_tokens"])
def _begin_step(
    ids, positions, out_slots, token_rows, last_tokens, slot_table, input_ids, num_tokens, table_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = token < num_tokens
    row = tl.load(token_rows + token, mask=ok, other=0).to(tl.int64)
    known = tl.load(ids + token, mask=ok, other=0)
    last = tl.load(last_tokens + row, mask=ok, other=0)
    tl.store(input_ids + token, tl.where(known < 0, last, known), mask=ok)
    at = row * table_stride + tl.load(positions + token, mask=ok, other=0)
    tl.store(slot_table + at, tl.load(out_slots + token, mask=ok, other=0), mask=ok)


@triton.jit
def _copy_rows(slots, spans, slot_table, table_stride, BLOCK: tl.constexpr):
    span = spans + tl.program_id(0) * 4
    row = tl.load(span).to(tl.int64)
    start = tl.load(span + 1)
    count = tl.load(span + 2)
    source = tl.load(span + 3)
    for begin in range(0, count, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        ok = i < count
        tl.store(slot_table + row * table_stride + start + i, tl.load(slots + source + i, mask=ok, other=0), mask=ok)


def begin_step(
    ids: Tensor,
    positions: Tensor,
    out_slots: Tensor,
    token_rows: Tensor,
    last_tokens: Tensor,
    slot_table: Tensor,
    input_ids: Tensor,
) -> None:
    """Write the slot of each of T new tokens (row `token_rows`, column `positions`) into the table, and its id into
    `input_ids`: its own, or where that is negative the row's last sampled one. All int32 [T]; `last_tokens` [rows]."""
    num_tokens = len(ids)
    _begin_step[(triton.cdiv(num_tokens, 256),)](
        ids, positions, out_slots, token_rows, last_tokens, slot_table, input_ids, num_tokens, slot_table.stride(0),
        BLOCK=256, num_warps=4,
    )  # fmt: skip


def copy_rows(slots: Tensor, spans: Tensor, slot_table: Tensor) -> None:
    """For each span (row, start, count, source), int32 [S, 4]: columns from `start` on take `slots[source:]`."""
    _copy_rows[(len(spans),)](slots, spans, slot_table, slot_table.stride(0), BLOCK=1024, num_warps=4)
