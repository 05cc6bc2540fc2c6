# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Rotary embedding in place and the store of keys and values into the pool, in one Triton kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels.fp8 import FP8, as_bytes
from lmnb.kernels.fp8_triton import as_halves, narrowed


@triton.jit
def _angles(positions, inv_freq, cos, sin, HALF: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    pairs = tl.arange(0, BLOCK)
    ok = pairs < HALF
    angle = tl.load(positions + token).to(tl.float32) * tl.load(inv_freq + pairs, mask=ok, other=0.0)
    at = token.to(tl.int64) * (2 * HALF) + pairs
    c = tl.cos(angle).to(cos.dtype.element_ty)
    s = tl.sin(angle).to(sin.dtype.element_ty)
    tl.store(cos + at, c, mask=ok)
    tl.store(cos + at + HALF, c, mask=ok)
    tl.store(sin + at, -s, mask=ok)
    tl.store(sin + at + HALF, s, mask=ok)


@triton.jit
def _rotary_store(
    heads,
    new_values,
    cos,
    sin,
    keys,
    values,
    out_slots,
    heads_stride,
    values_stride,
    slot_stride,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HALVES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = HEAD_DIM // 2
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    pairs = tl.arange(0, BLOCK_HALF)
    pair_ok = (pairs < half)[None, :]
    ok = (head < QUERY_HEADS + KV_HEADS)[:, None] & pair_ok
    c = tl.load(cos + token * HEAD_DIM + pairs, mask=pairs < half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + token * HEAD_DIM + half + pairs, mask=pairs < half, other=0.0).to(tl.float32)[None, :]
    at = heads + token * heads_stride + head[:, None] * HEAD_DIM + pairs[None, :]
    a = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(at + half, mask=ok, other=0.0).to(tl.float32)
    low = a * c - b * s
    high = b * c + a * s
    is_query = (head < QUERY_HEADS)[:, None] & pair_ok
    if HALVES:
        tl.store(at, as_halves(low), mask=is_query)
        tl.store(at + half, as_halves(high), mask=is_query)
    else:
        tl.store(at, low.to(heads.dtype.element_ty), mask=is_query)
        tl.store(at + half, high.to(heads.dtype.element_ty), mask=is_query)
    low = low.to(heads.dtype.element_ty)
    high = high.to(heads.dtype.element_ty)
    is_key = (head >= QUERY_HEADS)[:, None] & ok
    slot = tl.load(out_slots + token).to(tl.int64) * slot_stride
    kv_at = (head - QUERY_HEADS)[:, None] * HEAD_DIM + pairs[None, :]
    from_at = new_values + token * values_stride + kv_at
    low_value = tl.load(from_at, mask=is_key, other=0.0)
    high_value = tl.load(from_at + half, mask=is_key, other=0.0)
    if keys.dtype.element_ty == tl.uint8:  # stored in 8 bits
        low, high = narrowed(low), narrowed(high)
        low_value, high_value = narrowed(low_value), narrowed(high_value)
    tl.store(keys + slot + kv_at, low, mask=is_key)
    tl.store(keys + slot + kv_at + half, high, mask=is_key)
    tl.store(values + slot + kv_at, low_value, mask=is_key)
    tl.store(values + slot + kv_at + half, high_value, mask=is_key)


def rotary_angles_triton(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """See `rotary_angles`."""
    half = len(inv_freq)
    cos = torch.empty(len(positions), 1, 2 * half, dtype=dtype, device=positions.device)
    sin = torch.empty_like(cos)
    if len(positions):
        _angles[(len(positions),)](
            positions, inv_freq, cos, sin, HALF=half, BLOCK=triton.next_power_of_2(half), num_warps=1
        )
    return cos, sin


def rotary_store_triton(
    heads: Tensor,
    new_values: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    out_slots: Tensor,
) -> Tensor:
    """See `rotary_store`. The queries are rotated in place, in `heads`; slots may be of any integer type."""
    num_tokens, num_heads, head_dim = heads.shape
    num_kv_heads = new_values.shape[1]
    halves = keys.dtype is FP8 and heads.dtype is torch.bfloat16
    block_h = min(8, triton.next_power_of_2(num_heads))
    if num_tokens:
        _rotary_store[(num_tokens, triton.cdiv(num_heads, block_h))](
            heads,
            new_values,
            cos,
            sin,
            as_bytes(keys),
            as_bytes(values),
            out_slots,
            heads.stride(0),
            new_values.stride(0),
            keys.stride(0),
            QUERY_HEADS=num_heads - num_kv_heads,
            KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_H=block_h,
            BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
            HALVES=halves,
            num_warps=2,
        )
    queries = heads[:, : num_heads - num_kv_heads]
    return queries.view(torch.float16) if halves else queries
