# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Decode attention over a paged KV pool in Triton: split over keys, shared by branches, merged by log-sum-exp.

Flash decoding (Dao et al., 2023) with the shared parts of Hydragen (Juravsky et al., 2024), for any tree of
requests: an item's queries are all query heads of all its requests, so that one read of a key serves them all.
Every partial result has a place of its own and is merged in a fixed order: the result is deterministic.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels.attend_block_triton import LOG2_E, attend_block, needs_long
from lmnb.kernels.device_plan import ITEM_FIELDS, NARROW_ROWS, WIDE_ROWS, DecodePart
from lmnb.kernels.fp8_triton import readable


@triton.jit(do_not_specialize=["max_parts"])
def _attend_items(
    queries,
    keys,
    values,
    slot_table,
    items,
    kv_lens,
    partial_out,
    partial_lse,
    scale_log2,
    softcap,
    query_stride,
    slot_stride,
    table_stride,
    max_parts,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FIELDS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LONG: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    item = items + (program // KV_HEADS) * FIELDS
    head = program % KV_HEADS
    first = tl.load(item)
    count = tl.load(item + 1)
    if count == 0:
        return
    table_row = slot_table + tl.load(item + 2).to(tl.int64) * table_stride
    key_start = tl.load(item + 3)
    key_end = tl.minimum(tl.load(item + 4), tl.load(kv_lens + first))
    part = tl.load(item + 5)

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    request = first + rows // GROUP
    query_head = head * GROUP + rows % GROUP
    row_ok = rows < count * GROUP
    dim_ok = dims < HEAD_DIM
    query_at = request.to(tl.int64) * query_stride + query_head * HEAD_DIM
    q = tl.load(queries + query_at[:, None] + dims[None, :], mask=row_ok[:, None] & dim_ok[None, :], other=0.0)
    if WINDOW > 0:
        oldest = tl.load(kv_lens + request, mask=row_ok, other=1 << 30) - WINDOW
        key_start = tl.maximum(key_start, tl.min(oldest, 0))

    else:
        oldest = request

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    whole = key_start + tl.maximum(key_end - key_start, 0) // BLOCK_N * BLOCK_N
    for key in tl.range(key_start, whole, BLOCK_N, num_stages=STAGES):
        peak, total, acc = attend_block(
            q, keys, values, table_row, key, key_end, oldest, oldest, head, scale_log2, softcap, slot_stride,
            peak, total, acc, HEAD_DIM, BLOCK_D, BLOCK_N, False, WINDOW > 0, False, SOFTCAP, LONG,
        )  # fmt: skip
    if whole < key_end:
        peak, total, acc = attend_block(
            q, keys, values, table_row, whole, key_end, oldest, oldest, head, scale_log2, softcap, slot_stride,
            peak, total, acc, HEAD_DIM, BLOCK_D, BLOCK_N, True, WINDOW > 0, False, SOFTCAP, LONG,
        )  # fmt: skip

    nothing = total == 0.0
    out = acc / tl.where(nothing, 1.0, total)[:, None]
    lse = tl.where(nothing, float("-inf"), peak + tl.log2(tl.where(nothing, 1.0, total)))
    place = (request.to(tl.int64) * max_parts + part) * (KV_HEADS * GROUP) + query_head
    tl.store(partial_lse + place, lse, mask=row_ok)
    out_at = partial_out + place[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_at, out.to(partial_out.dtype.element_ty), mask=row_ok[:, None] & dim_ok[None, :])


@triton.jit(do_not_specialize=["max_parts"])
def _combine_parts(
    partial_out,
    partial_lse,
    num_parts,
    out,
    max_parts,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D)
    head_ok = head < HEADS
    ok = head_ok[:, None] & (dims < HEAD_DIM)[None, :]
    count = tl.load(num_parts + request)
    peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for part in tl.range(0, count, num_stages=3):
        place = (request * max_parts + part) * HEADS + head
        lse = tl.load(partial_lse + place, mask=head_ok, other=float("-inf"))
        block = tl.load(partial_out + place[:, None] * HEAD_DIM + dims[None, :], mask=ok, other=0.0).to(tl.float32)
        new_peak = tl.maximum(peak, lse)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        share = tl.exp2(lse - base)
        fade = tl.exp2(peak - base)
        total = total * fade + share
        acc = acc * fade[:, None] + share[:, None] * block
        peak = new_peak
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    at = out + (request * HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=ok)


def decode_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_table: Tensor,
    part: DecodePart,
    scale: float,
    out: Tensor,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Attention of the first `part.num_rows` of `queries` [T, Hq, D] over the pool, into `out` [T, Hq * D].

    Rows without any item become zeros. `scale` multiplies the scores; `softcap` then bounds them.
    """
    launch = partial(_launch_items, queries, readable(keys), readable(values), slot_table, part, scale, window, softcap)
    if len(part.wide):
        # One kernel waits for memory and the other for the matrix units: side by side they take less time.
        side = part.side_stream
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side) if side is not None else nullcontext():
            launch(part.wide, is_wide=True)
        launch(part.narrow, is_wide=False)
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
    else:
        launch(part.narrow, is_wide=False)
    num_heads, head_dim = queries.shape[1:]
    block_h = min(num_heads, 4 if part.num_rows > 16 else 1)
    _combine_parts[(part.num_rows, triton.cdiv(num_heads, block_h))](
        part.partial_out,
        part.partial_lse,
        part.num_parts,
        out,
        part.max_parts,
        HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_H=triton.next_power_of_2(block_h),
        BLOCK_D=triton.next_power_of_2(head_dim),
        num_warps=max(1, block_h),
    )


def _launch_items(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_table: Tensor,
    part: DecodePart,
    scale: float,
    window: int | None,
    softcap: float | None,
    items: Tensor,
    *,
    is_wide: bool,
) -> None:
    num_heads, head_dim = queries.shape[1:]
    num_kv_heads = keys.shape[1]
    block_d = max(16, triton.next_power_of_2(head_dim))  # matrix units want 16 at least
    big = queries.dtype == torch.float32 or block_d > 128
    if is_wide:
        block_n, stages, warps = (32, 1, 8) if big else (64, 3, 4)
    elif part.is_short:
        block_n, stages, warps = (16, 2, 2) if big else (16, 2, 1)
    elif big:
        block_n, stages, warps = 32, 2, 2
    else:
        block_n, stages, warps = 64, 3, 1 if keys.dtype.itemsize == 1 else 2
    _attend_items[(len(items) * num_kv_heads,)](
        queries,
        keys,
        values,
        slot_table,
        items,
        part.kv_lens,
        part.partial_out,
        part.partial_lse,
        scale * LOG2_E,
        softcap or 0.0,
        queries.stride(0),
        keys.stride(0),
        slot_table.stride(0),
        part.max_parts,
        KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_M=WIDE_ROWS if is_wide else NARROW_ROWS,
        BLOCK_N=block_n,
        FIELDS=ITEM_FIELDS,
        WINDOW=window or 0,
        SOFTCAP=softcap is not None,
        LONG=needs_long(keys),
        STAGES=stages,
        num_warps=warps,
    )
