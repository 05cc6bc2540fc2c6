"""Captured decode steps by what they have room for, and which of them serves a step that has none of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

G = TypeVar("G")

# Capturing takes as long as ten steps of one row. A size that comes up but now and then, as where requests end one
# after another or forced text comes in all lengths, is not worth it where a graph of little more is at hand: after so
# many steps, what they have lost is about what capturing costs.
_BORROWED_STEPS = 32
_MOST_ROWS, _MOST_ROOM = 4 / 3, 4  # times as much as is needed,
_FEW_ROWS, _FEW_WIDE_ITEMS = 128, 128  # or so much: the weights must be read in any case


class GraphKey(NamedTuple):
    """What a decode step was captured for."""

    size: int  # rows
    room: int  # wide items; none: it launches no kernel for them
    is_short: bool  # see `DecodeItems`; any graph computes either, in another time


class StepGraphs(Generic[G]):
    """The graphs of one executor, and how often each was wanted before it was there."""

    def __init__(self) -> None:
        self._graphs: dict[GraphKey, G] = {}
        self._wanted: Counter[GraphKey] = Counter()

    def find(self, key: GraphKey, fits: Callable[[GraphKey], bool]) -> tuple[GraphKey, G | None]:
        """The graph to replay for a step, and what its inputs are to be laid out for: that of `key`, or for the first
        few steps another one that `fits`. None: the step's own is to be captured."""
        graph = self._graphs.get(key)
        # A single row is what most programs have, and is computed by kernels of its own: no later than at its first
        # step, as they may have to be compiled.
        if graph is not None or key.size == 1:
            return key, graph
        self._wanted[key] += 1
        if self._wanted[key] > _BORROWED_STEPS:
            return key, None
        near = [other for other in self._graphs if _serves(other, key) and fits(other)]
        if not near:
            return key, None
        best = min(near, key=lambda other: (other.size, other.room, other.is_short is not key.is_short))
        return best, self._graphs[best]

    def add(self, key: GraphKey, graph: G) -> None:
        self._graphs[key] = graph
        del self._wanted[key]

    def clear(self) -> None:
        self._graphs.clear()
        self._wanted.clear()


def _serves(other: GraphKey, key: GraphKey) -> bool:
    """Whether a graph has room for a step of `key`, and not too much."""
    return key.size <= other.size <= max(_FEW_ROWS, _MOST_ROWS * key.size) and key.room <= other.room <= max(
        _FEW_WIDE_ITEMS, _MOST_ROOM * key.room
    )
