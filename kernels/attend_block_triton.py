# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""One block of keys in the running softmax of every attention kernel here (Milakov & Gimelshein, 2018)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels.fp8_triton import widened

LOG2_E = 1.4426950408889634


def needs_long(pool: Tensor) -> bool:
    """Whether an offset into `pool` may not fit into 32 bits, which are quicker to compute with."""
    return pool.numel() >= 1 << 31


@triton.jit
def attend_block(
    q,
    keys,
    values,
    table_row,
    start,
    stop,
    oldest,
    newest,
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
    BOUNDED: tl.constexpr,
    SINCE: tl.constexpr,
    UNTIL: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LONG: tl.constexpr,
):
    """Keys [start, start + BLOCK_N) of a slot table's row, for queries q [M, D]: the new (peak, total, acc).

    BOUNDED: keys from `stop` on do not exist. SINCE and UNTIL: a query sees keys from its `oldest` one, up to its
    `newest` one. LONG: offsets into the pool need 64 bits. Scores are in powers of two.
    """
    positions = start + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    key_ok = positions < stop
    if BOUNDED:
        slots = tl.load(table_row + positions, mask=key_ok, other=0)
    else:
        slots = tl.load(table_row + positions)
    if LONG:
        slots = slots.to(tl.int64)
    at = slots * slot_stride + head * HEAD_DIM
    key_at = keys + at[None, :] + dims[:, None]
    value_at = values + at[:, None] + dims[None, :]
    dim_ok = dims < HEAD_DIM
    if BOUNDED:
        k = tl.load(key_at, mask=key_ok[None, :] & dim_ok[:, None], other=0.0)
        v = tl.load(value_at, mask=key_ok[:, None] & dim_ok[None, :], other=0.0)
    elif HEAD_DIM == BLOCK_D:
        k = tl.load(key_at)
        v = tl.load(value_at)
    else:
        k = tl.load(key_at, mask=dim_ok[:, None], other=0.0)
        v = tl.load(value_at, mask=dim_ok[None, :], other=0.0)
    k = widened(k, q, False)
    v = widened(v, q, True)
    scores = tl.dot(q, k, input_precision="ieee") * scale_log2
    if SOFTCAP:
        capped = softcap * (2.0 * tl.sigmoid(2.0 * scores / (softcap * 1.4426950408889634)) - 1.0)
        scores = capped * 1.4426950408889634
    if BOUNDED:
        scores = tl.where(key_ok[None, :], scores, float("-inf"))
    if SINCE:
        scores = tl.where(positions[None, :] >= oldest[:, None], scores, float("-inf"))
    if UNTIL:
        scores = tl.where(positions[None, :] <= newest[:, None], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    if SINCE:  # a whole block may lie before what a query sees
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    else:
        base = new_peak
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(peak - base)
    total = total * fade + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return new_peak, total, acc
