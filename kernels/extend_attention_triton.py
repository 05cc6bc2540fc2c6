# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Attention of prompts' new tokens over their cached prefix and themselves, in Triton (FlashAttention-2's loop).

A tile holds some tokens of one request with all query heads of one KV head, so that even a few new tokens use
what they read several times. Keys that every token of a tile sees need no mask; the diagonal comes last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels.device_plan import NARROW_ROWS, TILE_FIELDS, WIDE_ROWS

_LOG2_E = 1.4426950408889634


@triton.jit
def _extend_block(
    q,
    keys,
    values,
    table_row,
    start,
    last_key,
    query_positions,
    head,
    scale_log2,
    softcap,
    slot_stride,
    peak,
    total,
    acc,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):
    positions = start + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    dim_ok = dims < HEAD_DIM
    if MASKED:
        key_ok = positions <= last_key
        slots = tl.load(table_row + positions, mask=key_ok, other=0).to(tl.int64)
        at = slots * slot_stride + head * HEAD_DIM
        k = tl.load(keys + at[None, :] + dims[:, None], mask=key_ok[None, :] & dim_ok[:, None], other=0.0)
        v = tl.load(values + at[:, None] + dims[None, :], mask=key_ok[:, None] & dim_ok[None, :], other=0.0)
    else:
        slots = tl.load(table_row + positions).to(tl.int64)
        at = slots * slot_stride + head * HEAD_DIM
        if HEAD_DIM == BLOCK_D:
            k = tl.load(keys + at[None, :] + dims[:, None])
            v = tl.load(values + at[:, None] + dims[None, :])
        else:
            k = tl.load(keys + at[None, :] + dims[:, None], mask=dim_ok[:, None], other=0.0)
            v = tl.load(values + at[:, None] + dims[None, :], mask=dim_ok[None, :], other=0.0)
    scores = tl.dot(q, k, input_precision="ieee") * scale_log2
    if SOFTCAP:
        capped = softcap * (2.0 * tl.sigmoid(2.0 * scores / (softcap * 1.4426950408889634)) - 1.0)
        scores = capped * 1.4426950408889634
    if MASKED:
        seen = positions[None, :] <= query_positions[:, None]
        if WINDOW > 0:
            seen = seen & (positions[None, :] > query_positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    if WINDOW > 0:
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    else:
        base = new_peak
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(peak - base)
    total = total * fade + tl.sum(weights, 1)
    acc = acc * fade[:, None]
    acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
    return new_peak, total, acc


@triton.jit
def _extend_tiles(
    queries,
    keys,
    values,
    slot_table,
    tiles,
    out,
    scale_log2,
    softcap,
    query_stride,
    slot_stride,
    table_stride,
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
    tile = tiles + (program // KV_HEADS) * FIELDS
    head = program % KV_HEADS
    first_token = tl.load(tile)
    num_tokens = tl.load(tile + 1)
    first_position = tl.load(tile + 2)
    table_row = slot_table + tl.load(tile + 3).to(tl.int64) * table_stride

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    offset = rows // GROUP
    query_head = head * GROUP + rows % GROUP
    row_ok = offset < num_tokens
    ok = row_ok[:, None] & (dims < HEAD_DIM)[None, :]
    token = (first_token + offset).to(tl.int64)
    q = tl.load(queries + (token * query_stride + query_head * HEAD_DIM)[:, None] + dims[None, :], mask=ok, other=0.0)
    last_key = first_position + num_tokens - 1
    query_positions = tl.minimum(first_position + offset, last_key)  # padding rows see what the last row sees

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    start = 0
    whole = 0  # keys before this one need no mask
    if WINDOW > 0:
        start = tl.maximum(0, first_position - WINDOW + 1)
        whole = start
    else:
        whole = (first_position + 1) // BLOCK_N * BLOCK_N
    for key in tl.range(start, whole, BLOCK_N, num_stages=STAGES):
        peak, total, acc = _extend_block(
            q, keys, values, table_row, key, last_key, query_positions, head, scale_log2, softcap, slot_stride,
            peak, total, acc, HEAD_DIM, BLOCK_D, BLOCK_N, WINDOW, SOFTCAP, False,
        )  # fmt: skip
    for key in tl.range(whole, last_key + 1, BLOCK_N, num_stages=1 if WINDOW == 0 else STAGES):
        peak, total, acc = _extend_block(
            q, keys, values, table_row, key, last_key, query_positions, head, scale_log2, softcap, slot_stride,
            peak, total, acc, HEAD_DIM, BLOCK_D, BLOCK_N, WINDOW, SOFTCAP, True,
        )  # fmt: skip
    acc = acc / total[:, None]  # each token sees itself: the total is never 0
    place = token * (KV_HEADS * GROUP) + query_head
    tl.store(out + place[:, None] * HEAD_DIM + dims[None, :], acc.to(out.dtype.element_ty), mask=ok)


def extend_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_table: Tensor,
    tiles: Tensor,
    scale: float,
    out: Tensor,
    *,
    rows_per_tile: int,
    window: int | None = None,
    softcap: float | None = None,
) -> None:
    """Attention of the tokens that `tiles` name among `queries` [T, Hq, D], into `out` [T, Hq * D]."""
    assert rows_per_tile in (NARROW_ROWS, WIDE_ROWS)
    num_heads, head_dim = queries.shape[1:]
    num_kv_heads = keys.shape[1]
    block_d = max(16, triton.next_power_of_2(head_dim))  # matrix units want 16 at least
    wide_values = queries.dtype == torch.float32 or block_d > 128
    is_wide = rows_per_tile == WIDE_ROWS
    _extend_tiles[(len(tiles) * num_kv_heads,)](
        queries,
        keys,
        values,
        slot_table,
        tiles,
        out,
        scale * _LOG2_E,
        softcap or 0.0,
        queries.stride(0),
        keys.stride(0),
        slot_table.stride(0),
        KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_M=rows_per_tile,
        BLOCK_N=32 if wide_values else 64,
        FIELDS=TILE_FIELDS,
        WINDOW=window or 0,
        SOFTCAP=softcap is not None,
        STAGES=1 if wide_values else 3,
        num_warps=8 if is_wide and wide_values else 4,
    )
