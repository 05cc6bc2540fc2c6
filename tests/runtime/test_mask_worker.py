"""How masks share a worker's threads: which of them take one, and which of those lose it again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_support import TOKENIZER
from late_support import Gate, GatedMatcher
from patience import until

from lmnb.runtime import mask_worker
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.mask_state import MaskState
from lmnb.runtime.mask_worker import MaskWorker, only
from lmnb.runtime.request import Constraint

pytestmark = pytest.mark.timeout(60)

GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size)
NUM_WORDS = -(-TOKENIZER.vocab_size // 32)


@contextmanager
def a_worker(num_threads: int) -> Iterator[MaskWorker]:
    worker = MaskWorker(TOKENIZER.vocab_size, num_threads, wake=lambda: None)
    try:
        yield worker
    finally:
        worker.close()


def a_sequence(number: int, gate: Gate | None = None) -> Any:
    """What a worker knows of one that writes letters."""
    matcher: Any = GRAMMARS.compile(Constraint("regex", "[a-z]+"))
    return SimpleNamespace(
        id=number,
        matcher=matcher if gate is None else GatedMatcher(matcher, gate),
        mask=MaskState.NONE,
        mask_behind=None,
        planned=deque(),
        draw=SimpleNamespace(bitmask=None, mask_error=None),
        output=SimpleNamespace(finished=False),
        grammar_pace=0.0,
        num_sampled=0,
        grammar_seconds=0.0,
    )


def test_a_mask_that_is_known_takes_no_thread() -> None:
    forced, behind = a_sequence(1), a_sequence(2)
    forced.planned.append(70)
    behind.mask_behind = known = np.full(NUM_WORDS, 5, dtype=np.int32)
    with a_worker(1) as worker:
        worker.begin([forced, behind])
        worker.wait([forced, behind], lambda: False)
        assert (worker.num_masks, worker.seconds, worker._threads) == (2, 0, [])
    assert forced.mask is behind.mask is MaskState.MADE
    assert [i for i in range(32 * NUM_WORDS) if forced.draw.bitmask[i // 32] >> i % 32 & 1] == [70]
    assert behind.draw.bitmask is known
    assert behind.mask_behind is None, "it is for one choice"
    assert only(70, NUM_WORDS) is forced.draw.bitmask, "rows share it"


def test_many_masks_are_made_by_however_many_threads() -> None:
    sequences = [a_sequence(number) for number in range(64)]
    for num_threads in (1, 4):
        with a_worker(num_threads) as worker:
            for _ in range(5):
                for each in sequences:
                    each.mask = MaskState.NONE
                worker.begin(sequences)
                worker.wait(sequences, lambda: True)
                assert {each.mask for each in sequences} == {MaskState.MADE}
            assert worker.num_masks == 5 * len(sequences)


def test_a_mask_keeps_its_place_while_the_engine_does_other_things() -> None:
    """It may be the engine that holds the interpreter's lock."""
    gate = Gate(1)
    slow, other = a_sequence(1, gate), a_sequence(2)
    with a_worker(1) as worker:
        worker.begin([slow])
        assert gate.entered.wait(20)
        time.sleep(3 * mask_worker._PLACE_SECONDS)
        worker.begin([other])
        assert (list(worker._placed), worker._num_displaced) == ([slow.id], 0)
        worker.wait([slow, other], lambda: False)  # and now it is slow
        assert slow.mask is MaskState.LATE
        until(lambda: other.mask is MaskState.MADE)
        gate.opened.set()
        until(lambda: slow.mask is MaskState.MADE)


def test_a_late_mask_gives_its_place_to_the_next_at_once() -> None:
    gate = Gate(1)
    slow, other = a_sequence(1, gate), a_sequence(2)
    with a_worker(1) as worker:
        worker.begin([slow])
        assert gate.entered.wait(20)
        worker.wait([slow], lambda: False)
        assert slow.mask is MaskState.LATE
        worker.begin([other])
        until(lambda: other.mask is MaskState.MADE)
        gate.opened.set()
        until(lambda: slow.mask is MaskState.MADE)
