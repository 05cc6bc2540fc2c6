"""Masks that are late, and engines that wait for none."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from lmnb.runtime import mask_worker
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.late_rows import LateRows
from lmnb.runtime.mask_worker import MaskWorker
from lmnb.runtime.request import Constraint


def count_late(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows at once are chosen for after their step, in engines that wait for no mask from now on."""
    wait, take, counts = MaskWorker.wait, LateRows.take, []

    def counted(late: LateRows) -> Any:
        taken = take(late)
        if taken is not None:
            counts.append(len(taken[0].sampled))
        return taken

    monkeypatch.setattr(mask_worker, "_PATIENCE_SECONDS", 0)
    monkeypatch.setattr(MaskWorker, "wait", lambda worker, sequences, _: wait(worker, sequences, lambda: False))
    monkeypatch.setattr(LateRows, "take", counted)
    return counts


class Gate:
    """Holds up some of the masks of a request, by number, until it is opened."""

    def __init__(self, *numbers: int, error: BaseException | None = None) -> None:
        self.numbers: Collection[int] = numbers
        self.error = error
        self.entered, self.opened = threading.Event(), threading.Event()

    def pass_by(self, number: int) -> None:
        if number in self.numbers:
            self.entered.set()
            assert self.opened.wait(100)
            if self.error is not None:
                raise self.error


class GatedMatcher:
    """A matcher whose masks pass by a gate. Its forks are plain: they do not make a request's masks."""

    def __init__(self, inner: GrammarMatcher, gate: Gate) -> None:
        self.engine, self._inner, self._gate = inner.engine, inner, gate
        self._num_fills = 0
        self.is_filling = False

    def __getattr__(self, name: str) -> Any:
        assert not self.is_filling, "nobody may use a matcher whose mask is being made"
        return getattr(self._inner, name)

    def fill(self, bitmask: np.ndarray) -> bool:
        self.is_filling = True
        self._num_fills += 1
        self._gate.pass_by(self._num_fills)
        filled = self._inner.fill(bitmask)
        self.is_filling = False
        return filled


class GatedGrammars:
    """`grammars` with a gate before the masks of some constraints: each request takes the next one of its list."""

    def __init__(self, grammars: Grammars, gates: dict[str, list[Gate]]) -> None:
        self._grammars = grammars
        self._gates = {source: iter(each) for source, each in gates.items()}

    def compile(self, constraint: Constraint) -> Any:
        matcher = self._grammars.compile(constraint)
        gate = next(self._gates.get(constraint.source, iter(())), None)
        return matcher if gate is None else GatedMatcher(matcher, gate)

    def known(self, constraint: Constraint) -> None:
        pass

    def close(self) -> None:
        pass


class Delays(Gate):
    """`grammars` whose masks are sometimes late by some milliseconds."""

    def __init__(self, grammars: Grammars, seed: int) -> None:
        super().__init__()
        self._grammars, self._rng = grammars, random.Random(seed)

    def compile(self, constraint: Constraint) -> Any:
        return GatedMatcher(self._grammars.compile(constraint), self)

    def known(self, constraint: Constraint) -> None:
        pass

    def close(self) -> None:
        pass

    def pass_by(self, number: int) -> None:
        draw = self._rng.random()
        if draw < 0.25:
            time.sleep(draw * 0.08)
