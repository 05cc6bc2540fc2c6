"""Where a step's tokens and keys lie, as tensors on a GPU: what the Triton attention kernels read.

Decoding requests are covered by *items*: a run of neighbouring requests, and a range of keys that all of them
see. Keys that several requests share are one item for all of them, so their memory is read once. A prompt's new
tokens are covered by *tiles*. Both hold numbers only; who made which choice stands in `runtime/decode_tree.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

# Columns of an item: the first request, how many (0: nothing to do), the row of the slot table that lists the
# keys, the range of keys, and which of the requests' partial results this one is.
ITEM_FIELDS = 6
# Columns of a tile: its first token, how many, that token's position, and the row of the slot table.
TILE_FIELDS = 4
# Query rows (tokens x query heads of one KV head) of a narrow and of a wide item or tile.
NARROW_ROWS = 16
WIDE_ROWS = 128
# The same of a strict tile, whose keys are taken in blocks that begin at multiples of one size.
STRICT_ROWS = 64
# The end of a key range that grows with its request.
OPEN_END = 1 << 30


@dataclass(frozen=True, slots=True)
class DecodePart:
    """The first `num_rows` tokens of a step, one for each decoding request (or padding, without any item)."""

    num_rows: int
    kv_lens: Tensor  # int32 [B]: tokens of each request, its new one included
    num_parts: Tensor  # int32 [B]: partial results of each request
    narrow: Tensor  # int32 [N, ITEM_FIELDS]
    wide: Tensor  # int32 [W, ITEM_FIELDS]
    partial_out: Tensor  # [>= B * P * Hq * D], in the queries' dtype: rounded as the result is
    partial_lse: Tensor  # float32 [>= B * P * Hq]
    max_parts: int  # P
    is_short: bool = False  # most narrow items have few keys
    side_stream: Any = None  # a CUDA stream of this plan's owner, for what can run beside


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One step. Tokens from `decode.num_rows` on (all, if there is no such part) belong to the tiles."""

    slot_table: Tensor  # int32 [rows, columns]
    decode: DecodePart | None
    narrow_tiles: Tensor | None = None  # int32 [N, TILE_FIELDS]
    wide_tiles: Tensor | None = None
    strict_tiles: Tensor | None = None  # then there are neither others nor a decode part
