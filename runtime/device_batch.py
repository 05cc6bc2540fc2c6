"""A step for a GPU: all its numbers in one int32 buffer, copied at once, and the views the kernels read.

It knows what a step consists of; not how it is run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmnb.kernels.device_plan import NARROW_ROWS, STRICT_ROWS, TILE_FIELDS, WIDE_ROWS
from lmnb.runtime.rows import Row, of_tokens
from lmnb.runtime.slot_table import SlotTable

Ints = NDArray[np.int32]


class Field(NamedTuple):
    """One array of a step, by name, in the shape the kernels expect."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Staging:
    """Host buffers taken in turn, so that one is filled while the copies of others are still under way: on a CUDA
    device they are pinned, and copies do not wait."""

    _RING = 4

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [torch.empty(0, dtype=torch.int32) for _ in range(self._RING)]
        self._is_cuda = device.type == "cuda"
        self._events: list[Any] = [torch.cuda.Event() for _ in range(self._RING)] if self._is_cuda else []  # type: ignore[no-untyped-call]
        self._next = 0

    def upload(self, arrays: list[Ints], target: Tensor | None = None) -> Tensor:
        """All arrays as one int32 tensor on the device, laid out for `views`: in `target`, or in a new one."""
        total = sum(_aligned(array.size) for array in arrays)
        turn, self._next = self._next, (self._next + 1) % self._RING
        if self._is_cuda:
            self._events[turn].synchronize()
        if len(self._buffers[turn]) < total:
            self._buffers[turn] = torch.empty(max(65536, 2 * total), dtype=torch.int32, pin_memory=self._is_cuda)
        host = self._buffers[turn][:total]
        view = host.numpy()
        at = 0
        for array in arrays:
            view[at : at + array.size] = array.reshape(-1)
            at += _aligned(array.size)
        if target is None:
            target = torch.empty(total, dtype=torch.int32, device=self._device)
        target[:total].copy_(host, non_blocking=True)
        if self._is_cuda:
            self._events[turn].record()
        return target


def views(buffer: Tensor, fields: list[Field]) -> dict[str, Tensor]:
    """The fields that lie one after the other in `buffer`."""
    found, at = {}, 0
    for field in fields:
        found[field.name] = buffer[at : at + field.size].view(field.shape)
        at += _aligned(field.size)
    return found


def space(fields: list[Field]) -> int:
    """How long a buffer with all these fields is."""
    return sum(_aligned(field.size) for field in fields)


def _aligned(count: int) -> int:
    """Fields begin at multiples of 16 bytes: Triton compiles a kernel anew for each way its arguments are aligned."""
    return -(-count // 4) * 4


def moved_slots(table: SlotTable) -> tuple[Ints, Ints] | None:
    """What was written to the table since the last call, other than steps' own tokens: slots, and spans
    (row, start, count, where in the slots) [S, 4]; None if nothing was."""
    moved, table.moved = table.moved, []
    if not moved:
        return None
    slots = np.concatenate([table.read(*span) for span in moved]).astype(np.int32)
    counts = np.array([end - start for _, start, end in moved])
    spans = [(row, start, end - start) for row, start, end in moved]
    offsets = np.cumsum(counts) - counts
    return slots, np.column_stack([np.array(spans), offsets]).astype(np.int32)


def token_columns(rows: list[Row], table: SlotTable) -> list[Ints]:
    """Ids (-1: on its way), rotary positions, columns and rows of the table, and slots of all rows' new tokens."""
    counts = [row.num_tokens for row in rows]
    if sum(counts) == len(rows):  # without a loop over small arrays
        ids = np.array([row.sequence.token_at(row.start) for row in rows])
    else:
        ids = np.concatenate([row.sequence.tokens_at(row.start, row.end) for row in rows])
    places = of_tokens([row.place for row in rows], counts, rising=False)
    columns = of_tokens([row.column for row in rows], counts)
    is_plain = not any(row.sequence.layout.sections for row in rows)
    positions = columns if is_plain else np.concatenate([row.sequence.positions(row.start, row.end) for row in rows])
    arrays = (ids, positions, columns, places, table.read_column(places, columns))
    return [array.astype(np.int32, copy=False) for array in arrays]


def extend_tiles(rows: list[Row], first_token: int, heads_per_kv: int) -> tuple[Ints, Ints]:
    """Narrow and wide tiles of rows whose tokens follow each other from `first_token` on; the longest work first."""
    narrow: list[tuple[int, int, int, int]] = []
    wide: list[tuple[int, int, int, int]] = []
    token = first_token
    for row in rows:
        count = row.kv_len - row.column
        if count * heads_per_kv <= NARROW_ROWS:
            narrow += _tiles(row, token, NARROW_ROWS // heads_per_kv)
        else:
            wide += _tiles(row, token, WIDE_ROWS // heads_per_kv)
        token += count
    return _longest_first(narrow), _longest_first(wide)


def strict_tiles(rows: list[Row], heads_per_kv: int) -> Ints:
    """The tiles of strict mode, which are all of one kind."""
    tiles: list[tuple[int, int, int, int]] = []
    token = 0
    for row in rows:
        tiles += _tiles(row, token, STRICT_ROWS // heads_per_kv)
        token += row.kv_len - row.column
    return _longest_first(tiles)


def one_token_tiles(columns: Ints, places: Ints) -> Ints:
    """A tile for each of a step's tokens, given their columns and rows of the table."""
    tokens = np.arange(len(columns), dtype=np.int32)
    return np.column_stack([tokens, np.ones_like(tokens), columns, places])


def _tiles(row: Row, first_token: int, size: int) -> list[tuple[int, int, int, int]]:
    """One row's tiles of `size` tokens."""
    start, end = row.column, row.kv_len
    return [
        (first_token + column - start, min(size, end - column), column, row.place) for column in range(start, end, size)
    ]


def _longest_first(tiles: list[tuple[int, int, int, int]]) -> Ints:
    return np.array(sorted(tiles, key=lambda tile: -tile[2]), dtype=np.int32).reshape(-1, TILE_FIELDS)
