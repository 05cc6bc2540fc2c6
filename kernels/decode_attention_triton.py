# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Decode attention over a paged KV pool in Triton: split over keys, shared by branches, merged by log-sum-exp.

Flash decoding (Dao et al., 2023) with the shared parts of Hydragen (Juravsky et al., 2024), for any tree of
requests: an item's queries are all query heads of all its requests, so that one read of a key serves them all.
Every partial result has a place of its own and is merged in a fixed order: the result is deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels.device_plan import ITEM_FIELDS, NARROW_ROWS, WIDE_ROWS, DecodePart

_LOG2_E = 1.4426950408889634


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

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in tl.range(key_start, key_end, BLOCK_N, num_stages=STAGES):
        positions = start + tl.arange(0, BLOCK_N)
        key_ok = positions < key_end
        slots = tl.load(table_row + positions, mask=key_ok, other=0).to(tl.int64)
        at = slots * slot_stride + head * HEAD_DIM
        k = tl.load(keys + at[None, :] + dims[:, None], mask=key_ok[None, :] & dim_ok[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        if SOFTCAP:
            capped = softcap * (2.0 * tl.sigmoid(2.0 * scores / (softcap * 1.4426950408889634)) - 1.0)
            scores = capped * 1.4426950408889634
        seen = key_ok[None, :]
        if WINDOW > 0:
            seen = seen & (positions[None, :] >= oldest[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        if WINDOW > 0:  # a whole block may lie outside of a row's window
            base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        else:
            base = new_peak
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(peak - base)
        total = total * fade + tl.sum(weights, 1)
        v = tl.load(values + at[:, None] + dims[None, :], mask=key_ok[:, None] & dim_ok[None, :], other=0.0)
        acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = new_peak

    nothing = total == 0.0
    out = acc / tl.where(nothing, 1.0, total)[:, None]
    lse = tl.where(nothing, float("-inf"), peak + tl.log2(tl.where(nothing, 1.0, total)))
    place = (request.to(tl.int64) * max_parts + part) * (KV_HEADS * GROUP) + query_head
    tl.store(partial_lse + place, lse, mask=row_ok)
    tl.store(partial_out + place[:, None] * HEAD_DIM + dims[None, :], out, mask=row_ok[:, None] & dim_ok[None, :])


@triton.jit(do_not_specialize=["max_parts"])
def _combine_parts(
    partial_out,
    partial_lse,
    num_parts,
    out,
    max_parts,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    count = tl.load(num_parts + request)
    dims = tl.arange(0, BLOCK_D)
    dim_ok = dims < HEAD_DIM
    peak = float("-inf")
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, count, BLOCK_P):
        parts = start + tl.arange(0, BLOCK_P)
        part_ok = parts < count
        place = (request * max_parts + parts) * HEADS + head
        lse = tl.load(partial_lse + place, mask=part_ok, other=float("-inf"))
        block = tl.load(
            partial_out + place[:, None] * HEAD_DIM + dims[None, :], mask=part_ok[:, None] & dim_ok[None, :], other=0.0
        )
        new_peak = tl.maximum(peak, tl.max(lse, 0))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        share = tl.exp2(lse - base)
        fade = tl.exp2(peak - base)
        total = total * fade + tl.sum(share, 0)
        acc = acc * fade + tl.sum(share[:, None] * block, 0)
        peak = new_peak
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out + (request * HEADS + head) * HEAD_DIM + dims, acc.to(out.dtype.element_ty), mask=dim_ok)


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
    num_heads, head_dim = queries.shape[1:]
    num_kv_heads = keys.shape[1]
    block_d = max(16, triton.next_power_of_2(head_dim))  # matrix units want 16 at least
    wide_values = queries.dtype == torch.float32 or block_d > 128
    for items, block_m in ((part.narrow, NARROW_ROWS), (part.wide, WIDE_ROWS)):
        if not len(items):
            continue
        is_wide = block_m == WIDE_ROWS
        block_n = 32 if wide_values else 64
        _attend_items[(len(items) * num_kv_heads,)](
            queries,
            keys,
            values,
            slot_table,
            items,
            part.kv_lens,
            part.partial_out,
            part.partial_lse,
            scale * _LOG2_E,
            softcap or 0.0,
            queries.stride(0),
            keys.stride(0),
            slot_table.stride(0),
            part.max_parts,
            KV_HEADS=num_kv_heads,
            GROUP=num_heads // num_kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_D=block_d,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            FIELDS=ITEM_FIELDS,
            WINDOW=window or 0,
            SOFTCAP=softcap is not None,
            STAGES=(1 if is_wide else 2) if wide_values else 3,
            num_warps=(8 if wide_values else 4) if is_wide else 2,
        )
    _combine_parts[(part.num_rows, num_heads)](
        part.partial_out,
        part.partial_lse,
        part.num_parts,
        out,
        part.max_parts,
        HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_P=8,
        num_warps=2,
    )
