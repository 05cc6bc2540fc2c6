"""Rows that a step computed and could not choose for, because their masks were late: their logits are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from lmnb.runtime.batch_builder import BuiltBatch
from lmnb.runtime.mask_state import MaskState
from lmnb.runtime.rows import Row


class LateRows:
    """Used by the engine's thread only. A row is dropped when its sequence has ended or was put back: then the token is
    computed again."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Row, Tensor]] = {}  # by sequence: logits [V]

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()

    def keep(self, built: BuiltBatch, logits: Tensor) -> BuiltBatch:
        """Keep the rows of `logits` [L, V] from which nothing can be chosen yet. `built` without those choices."""
        late = [row.sequence.mask is MaskState.LATE for row in built.sampled]
        if not any(late):
            return built
        in_time: list[tuple[Row, int]] = []
        for row, place, is_late in zip(built.sampled, built.sampled_rows, late, strict=True):
            if is_late:
                self._kept[row.sequence.id] = (row, logits[place].clone())
            else:
                in_time.append((row, place))
        return built._replace(sampled=[row for row, _ in in_time], sampled_rows=[place for _, place in in_time])

    def take(self) -> tuple[BuiltBatch, Tensor] | None:
        """The rows whose masks are there by now, as a step that has been computed, and their logits [L, V]; None if
        there are none."""
        if not self._kept:
            return None
        self._kept = {key: kept for key, kept in self._kept.items() if _still_waits(kept[0])}
        ready = [key for key, (row, _) in self._kept.items() if row.sequence.mask is MaskState.MADE]
        if not ready:
            return None
        taken = [self._kept.pop(key) for key in ready]
        rows = [row for row, _ in taken]
        places = list(range(len(rows)))
        return BuiltBatch(rows, places, rows, places, [], []), torch.stack([logits for _, logits in taken])


def _still_waits(row: Row) -> bool:
    return row.sequence.awaits_choice and not row.sequence.output.finished
