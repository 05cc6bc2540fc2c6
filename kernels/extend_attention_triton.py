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

from lmnb.kernels.attend_block_triton import LOG2_E, attend_block, needs_long
from lmnb.kernels.device_plan import NARROW_ROWS, STRICT_ROWS, TILE_FIELDS, WIDE_ROWS
from lmnb.kernels.fp8_triton import readable


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
    LONG: tl.constexpr,
    STAGES: tl.constexpr,
    STRICT: tl.constexpr,
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
    if STRICT:  # all keys alike, in blocks that do not depend on the tile: a token's sums are its own
        start = tl.maximum(0, first_position - WINDOW + 1) // BLOCK_N * BLOCK_N if WINDOW > 0 else 0
        whole = start
    elif WINDOW > 0:
        start = tl.maximum(0, first_position - WINDOW + 1)
        whole = start
    else:
        start = 0
        whole = (first_position + 1) // BLOCK_N * BLOCK_N  # keys before this one need no mask
    oldest = query_positions - WINDOW + 1
    for key in tl.range(start, whole, BLOCK_N, num_stages=STAGES):
        peak, total, acc = attend_block(
            q, keys, values, table_row, key, last_key + 1, oldest, query_positions, head, scale_log2, softcap,
            slot_stride, peak, total, acc, HEAD_DIM, BLOCK_D, BLOCK_N, False, False, False, SOFTCAP, LONG,
        )  # fmt: skip
    for key in tl.range(whole, last_key + 1, BLOCK_N, num_stages=STAGES if STRICT or WINDOW > 0 else 1):
        peak, total, acc = attend_block(
            q, keys, values, table_row, key, last_key + 1, oldest, query_positions, head, scale_log2, softcap,
            slot_stride, peak, total, acc, HEAD_DIM, BLOCK_D, BLOCK_N, True, WINDOW > 0, True, SOFTCAP, LONG,
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
    """Attention of the tokens that `tiles` name among `queries` [T, Hq, D], into `out` [T, Hq * D]. In strict tiles a
    token's bits depend on itself and on what it sees only."""
    assert rows_per_tile in (NARROW_ROWS, STRICT_ROWS, WIDE_ROWS)
    num_heads, head_dim = queries.shape[1:]
    num_kv_heads = keys.shape[1]
    block_d = max(16, triton.next_power_of_2(head_dim))  # matrix units want 16 at least
    wide_values = queries.dtype == torch.float32 or block_d > 128
    is_wide = rows_per_tile == WIDE_ROWS
    _extend_tiles[(len(tiles) * num_kv_heads,)](
        queries,
        readable(keys),
        readable(values),
        slot_table,
        tiles,
        out,
        scale * LOG2_E,
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
        LONG=needs_long(keys),
        STAGES=1 if wide_values else 3,
        STRICT=rows_per_tile == STRICT_ROWS,
        num_warps=8 if is_wide and wide_values else 4,
    )
