"""Rotary position embedding of new queries and keys, and the write of new keys and values into the KV pool.

Pairs are (i, i + D / 2), as in checkpoints made for transformers (GPT-NeoX's convention; Su et al., 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lmnb.kernels.dispatch import uses_triton
from lmnb.kernels.fp8 import store_rows
from lmnb.kernels.native import NativeKernels, native_kernels

_TABLE_TOKENS = 32768  # of a table of angles: 2 x 4 MiB for heads of 64 in bfloat16


def rotary_angles(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables [T, 1, D] of `positions` [T] and `inv_freq` [D / 2], ready for `rotary_store`.

    The sine's first half is negated, so that a rotation is `x * cos + roll(x, D / 2) * sin`.
    """
    if uses_triton(positions):
        from lmnb.kernels.rotary_store_triton import rotary_angles_triton

        return rotary_angles_triton(positions, inv_freq, dtype)
    angles = positions.to(torch.float32)[:, None] * inv_freq  # float32: bfloat16 positions would be wrong past 256
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype)


class RotaryAngles:
    """`rotary_angles` of a model; on a CPU they are looked up, which takes two operations instead of ten."""

    def __init__(self, inv_freq: Tensor, dtype: torch.dtype, context_tokens: int) -> None:
        self._inv_freq, self._dtype, self._context_tokens = inv_freq, dtype, context_tokens
        self._tables: tuple[Tensor, Tensor] | None = None
        if inv_freq.device.type == "cpu" and not uses_triton(inv_freq):
            cos, sin = rotary_angles(torch.arange(min(context_tokens, _TABLE_TOKENS)), inv_freq, dtype)
            self._tables = cos[:, 0], sin[:, 0]

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self._tables is None or int(positions.max()) >= len(self._tables[0]):
            return rotary_angles(positions, self._inv_freq, self._dtype)
        cos, sin = self._tables
        return functional.embedding(positions, cos)[:, None], functional.embedding(positions, sin)[:, None]


def rotary_store(
    heads: Tensor,
    new_values: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    out_slots: Tensor,
) -> Tensor:
    """Rotate `heads` [T, Hq + Hkv, D] (queries, then keys), write the keys and `new_values` [T, Hkv, D] to
    `out_slots` [T] of `keys` and `values` [num_slots, Hkv, D] (in `heads`' dtype or in float8), and return the rotated
    queries [T, Hq, D].

    On a GPU the queries are rotated in place. Beside keys in float8 they then become float16 where they were bfloat16:
    the hardware makes float16 of float8, and bfloat16 only of that."""
    if uses_triton(heads):
        from lmnb.kernels.rotary_store_triton import rotary_store_triton

        return rotary_store_triton(heads, new_values, cos, sin, keys, values, out_slots)
    native = native_kernels(heads)
    if native is not None and keys.dtype is heads.dtype and _heads_are_whole(heads) and _heads_are_whole(new_values):
        return _rotary_store_native(native, heads, new_values, cos, sin, keys, values, out_slots)
    return rotary_store_reference(heads, new_values, cos, sin, keys, values, out_slots)


def rotary_store_reference(
    heads: Tensor,
    new_values: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    out_slots: Tensor,
) -> Tensor:
    """Rotation and store in plain torch."""
    rotated = torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
    num_queries = heads.shape[1] - new_values.shape[1]
    store_rows(keys, out_slots, rotated[:, num_queries:])
    store_rows(values, out_slots, new_values)
    return rotated[:, :num_queries]


def _heads_are_whole(heads: Tensor) -> bool:
    """Whether the heads of each token of `heads` [T, H, D] lie one after the other."""
    return heads.stride(2) == 1 and heads.stride(1) == heads.shape[2]


def _rotary_store_native(
    native: NativeKernels,
    heads: Tensor,
    new_values: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    out_slots: Tensor,
) -> Tensor:
    tokens, num_heads, dim = heads.shape
    num_keys = new_values.shape[1]
    queries = torch.empty(tokens, num_heads - num_keys, dim, dtype=heads.dtype)
    native.call(
        "rotary_store", tokens, heads.data_ptr(), new_values.data_ptr(), cos.data_ptr(), sin.data_ptr(),
        out_slots.data_ptr(), queries.data_ptr(), keys.data_ptr(), values.data_ptr(),
        tokens, heads.stride(0), new_values.stride(0), num_heads - num_keys, num_keys, dim,
    )  # fmt: skip
    return queries
