"""Keys and values in 8 bits: rows of the KV pool written and read whatever it stores, in plain torch.

float8 e4m3 (torch's `float8_e4m3fn`): a sign, 4 bits of exponent, 3 of mantissa, no infinity. From 1/64 to 448 a number
is off by at most a sixteenth of itself, whatever its size; smaller ones by at most 1/1024. Larger ones become 448, as
infinities do; NaN stays NaN. There is no scale: it would move the range, but not make the numbers in it more exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def to_fp8(x: Tensor) -> Tensor:
    """`x` rounded to the nearest float8 (ties to even), values beyond its range to its ends."""
    # torch's own conversion makes NaN of what is too large.
    return x.float().clamp(-FP8_MAX, FP8_MAX).to(FP8)


def as_bytes(pool: Tensor) -> Tensor:
    """A pool in 8 bits as its bytes, which every indexing operation of torch takes; any other pool as it is."""
    return pool.view(torch.uint8) if pool.dtype is FP8 else pool


def store_rows(pool: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Write `rows` [T, ...] to `slots` [T] (int64) of `pool` [num_slots, ...], in what the pool stores."""
    if pool.dtype is FP8:
        rows = to_fp8(rows).view(torch.uint8)
    as_bytes(pool).index_copy_(0, slots, rows)


def read_rows(pool: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows of `slots` [T] as [T, ...] in `dtype`, which is the pool's own unless that is in 8 bits."""
    rows = as_bytes(pool).index_select(0, slots)
    return rows.view(FP8).to(dtype) if pool.dtype is FP8 else rows
