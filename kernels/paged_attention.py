"""Attention of a step's new tokens over keys and values that lie anywhere in the KV pool.

Works group by group (see `attention_plan.py`). Keys that all decoding requests share are read once for all of
them, and merged with each request's own part by log-sum-exp (as in flash decoding; Hydragen, Juravsky et al. 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmnb.kernels.attention_plan import AttentionGroup, AttentionPlan, NativePlan
from lmnb.kernels.device_plan import NARROW_ROWS, STRICT_ROWS, WIDE_ROWS, DevicePlan
from lmnb.kernels.fp8 import read_rows
from lmnb.kernels.native import native_kernels

_NATIVE_HEAD_DIMS = (64, 128)
NO_WINDOW = 1 << 62


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: AttentionPlan | NativePlan | DevicePlan,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Attention of `queries` [T, Hq, D] over the pool `keys`, `values` [num_slots, Hkv, D]: [T, Hq * D] in `dtype`
    (default: the queries').

    The new tokens' own keys and values must already be in the pool, in the queries' dtype or (but for a `NativePlan`)
    in float8. Hq is a multiple of Hkv. With a `window`, a token sees itself and the `window - 1` tokens before it (an
    `AttentionPlan` was made for that very window).
    A `softcap` bounds the scaled scores: softcap * tanh(score / softcap), as Gemma 2 has it.
    """
    if isinstance(plan, NativePlan):
        return _attend_natively(queries, keys, values, plan, scale, window)
    if isinstance(plan, DevicePlan):
        return _attend_on_device(queries, keys, values, plan, scale, window, softcap, dtype or queries.dtype)
    if len(plan.groups) == 1 and isinstance(plan.groups[0].tokens, slice):  # all tokens, in order
        out, lse = _attend_group(queries, keys, values, plan.groups[0], scale, softcap)
    else:
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        lse = torch.empty(queries.shape[:2], dtype=torch.float32, device=queries.device)
        for group in plan.groups:
            part, part_lse = _attend_group(queries, keys, values, group, scale, softcap)
            if isinstance(group.tokens, slice):
                out[group.tokens], lse[group.tokens] = part, part_lse
            else:
                if group.kept is not None:
                    part, part_lse = part[group.kept], part_lse[group.kept]
                targets = group.tokens if group.targets is None else group.targets
                out.index_copy_(0, targets, part)
                lse.index_copy_(0, targets, part_lse)
    if plan.shared_slots is not None:
        _merge_shared(out, lse, queries, keys, values, plan, scale, softcap)
    return out.reshape(plan.num_tokens, -1).to(dtype or queries.dtype)


def attends_natively(queries_like: Tensor, head_dim: int) -> bool:
    """Whether the compiled kernel takes queries of this kind: then a `NativePlan` is wanted."""
    return head_dim in _NATIVE_HEAD_DIMS and native_kernels(queries_like) is not None


def _attend_natively(
    queries: Tensor, keys: Tensor, values: Tensor, plan: NativePlan, scale: float, window: int | None
) -> Tensor:
    native = native_kernels(queries)
    assert native is not None
    queries = queries.contiguous()
    tokens, num_heads, head_dim = queries.shape
    out = torch.empty(tokens, num_heads * head_dim, dtype=queries.dtype)
    native.call(
        "paged_attention", tokens, queries.data_ptr(), keys.data_ptr(), values.data_ptr(), plan.slot_table.data_ptr(),
        plan.places.data_ptr(), plan.pieces.data_ptr(), out.data_ptr(), len(plan.pieces),
        plan.slot_table.shape[1], num_heads, keys.shape[1], head_dim, NO_WINDOW if window is None else window, scale,
    )  # fmt: skip
    return out


def _attend_on_device(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: DevicePlan,
    scale: float,
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
) -> Tensor:
    from lmnb.kernels.decode_attention_triton import decode_attention
    from lmnb.kernels.extend_attention_triton import extend_attention

    out = torch.empty(len(queries), queries.shape[1] * queries.shape[2], dtype=dtype, device=queries.device)
    table = plan.slot_table
    if plan.decode is not None:
        decode_attention(queries, keys, values, table, plan.decode, scale, out, window=window, softcap=softcap)
    kinds = (plan.narrow_tiles, NARROW_ROWS), (plan.wide_tiles, WIDE_ROWS), (plan.strict_tiles, STRICT_ROWS)
    for tiles, rows in kinds:
        if tiles is not None:
            extend_attention(
                queries, keys, values, table, tiles, scale, out, rows_per_tile=rows, window=window, softcap=softcap
            )
    return out


def _attend_group(
    queries: Tensor, keys: Tensor, values: Tensor, group: AttentionGroup, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Output [R * Q, Hq, D] and log-sum-exp [R * Q, Hq] of one group's padded queries."""
    num_rows, num_queries, num_kv_heads = group.num_rows, group.num_queries, keys.shape[1]
    picked = queries[group.tokens] if isinstance(group.tokens, slice) else queries.index_select(0, group.tokens)
    num_heads, head_dim = picked.shape[1:]
    # Query heads that read one KV head become further queries of it: no key is copied per head.
    folded = picked.reshape(num_rows, num_queries, num_kv_heads, -1, head_dim)
    if num_queries > 1:
        folded = folded.transpose(1, 2)
    folded = folded.reshape(num_rows, num_kv_heads, -1, head_dim)
    k = read_rows(keys, group.slots, queries.dtype).view(num_rows, -1, num_kv_heads, head_dim).transpose(1, 2)
    v = read_rows(values, group.slots, queries.dtype).view(num_rows, -1, num_kv_heads, head_dim).transpose(1, 2)
    out, lse = attend(folded, k, v, group.mask, scale, softcap)
    if num_queries == 1:
        return out.reshape(num_rows, num_heads, head_dim), lse.reshape(num_rows, num_heads)
    out = out.reshape(num_rows, num_kv_heads, num_queries, -1, head_dim).transpose(1, 2)
    lse = lse.reshape(num_rows, num_kv_heads, num_queries, -1).transpose(1, 2)
    return out.reshape(-1, num_heads, head_dim), lse.reshape(-1, num_heads)


def _merge_shared(
    out: Tensor,
    lse: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: AttentionPlan,
    scale: float,
    softcap: float | None,
) -> None:
    """Fold the shared slots' part into the decode rows of `out`, in place."""
    assert plan.shared_slots is not None
    n, num_kv_heads = plan.num_decode, keys.shape[1]
    num_heads, head_dim = queries.shape[1:]
    folded = queries[:n].reshape(n, num_kv_heads, -1, head_dim).transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    k = read_rows(keys, plan.shared_slots, queries.dtype).transpose(0, 1)[None]
    v = read_rows(values, plan.shared_slots, queries.dtype).transpose(0, 1)[None]
    shared, shared_lse = attend(folded, k, v, None, scale, softcap)
    shared = shared.reshape(num_kv_heads, n, -1, head_dim).transpose(0, 1).reshape(n, num_heads, head_dim)
    shared_lse = shared_lse.reshape(num_kv_heads, n, -1).transpose(0, 1).reshape(n, num_heads)
    # Both parts are softmax averages; each counts by its share of the whole sum of exponentials.
    share = torch.sigmoid(shared_lse - lse[:n]).to(out.dtype)[:, :, None]
    out[:n].lerp_(shared, share)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Dense attention of q [R, H, M, D] over k, v [R, H, L, D] with an additive mask that broadcasts to
    [R, 1, M, L]: the output [R, H, M, D] and the float32 log-sum-exp [R, H, M] of the scaled scores."""
    if q.device.type == "cpu" and softcap is None:
        # What scaled_dot_product_attention runs on a CPU, which would drop the log-sum-exp.
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=mask, scale=scale
        )
        return out, lse
    return attend_reference(q, k, v, mask, scale, softcap)


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Dense attention in plain torch, scores and softmax in float32."""
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)
