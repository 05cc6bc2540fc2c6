"""Which pool slot holds each token of each admitted sequence: one row per sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmnb.runtime.kv_pool import Slots


class SlotTable:
    """`num_rows` rows, and behind them `num_extra` that are nobody's: whoever makes a step may write there what it
    needs for that step. They grow in length together, by doubling, up to `max_columns`.

    `moved`: the ranges (row, start, end) that were written, other than for a step's own tokens. Whoever mirrors
    the table on a device copies and clears them; without one, they stay None.
    """

    def __init__(self, num_rows: int, max_columns: int, *, num_extra: int = 0) -> None:
        self.num_rows = num_rows
        self.moved: list[tuple[int, int, int]] | None = None
        self._table: NDArray[np.int64] = np.zeros((num_rows + num_extra, min(1024, max_columns)), dtype=np.int64)
        self._max_columns = max_columns
        self._free = list(range(num_rows - 1, -1, -1))

    def take_row(self) -> int:
        return self._free.pop()

    def give_row(self, row: int) -> None:
        self._free.append(row)

    def write(self, row: int, start: int, slots: Slots, *, fresh: bool = False) -> None:
        """Set the slots of tokens [start, start + len(slots)). `fresh`: they are the coming step's own tokens."""
        end = start + len(slots)
        self._fit(end)
        self._table[row, start:end] = slots
        if self.moved is not None and not fresh and end > start:
            self.moved.append((row, start, end))

    def write_column(self, rows: list[int], columns: list[int], slots: Slots) -> None:
        """Set one slot of each of several rows, for the coming step's own tokens."""
        self._fit(max(columns) + 1)
        self._table[rows, columns] = slots

    def _fit(self, end: int) -> None:
        while end > self._table.shape[1]:
            columns = min(2 * self._table.shape[1], self._max_columns)
            assert columns > self._table.shape[1], "a sequence outgrew the pool"
            wider = np.zeros((self._table.shape[0], columns), dtype=np.int64)
            wider[:, : self._table.shape[1]] = self._table
            self._table = wider

    def read(self, row: int, start: int, end: int) -> Slots:
        """The slots of tokens [start, end), a view."""
        return self._table[row, start:end]

    def read_column(self, rows: list[int] | NDArray[np.int64], columns: list[int] | NDArray[np.int64]) -> Slots:
        """One slot of each of several rows."""
        return self._table[rows, columns]

    def gather(self, rows: list[int], length: int) -> NDArray[np.int64]:
        """[len(rows), length]: the first `length` slots of each row (stale beyond a row's own length)."""
        return self._table[rows, :length]
