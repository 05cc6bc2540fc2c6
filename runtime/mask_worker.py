"""Computes the masks of a step beside its forward pass, in a thread of its own, and counts what they cost.

The libraries let go of the interpreter's lock while they work, and so does the forward pass (on a CPU, the compiled
kernels only in steps of more than a few rows: see `kernels/native.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

from lmnb.runtime.sequence import Sequence as EngineSequence


class MaskWorker:
    """One step at a time: `begin`, then `finish`. Its thread starts with the first mask and ends with `close`."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = (vocab_size + 31) // 32
        self._jobs: SimpleQueue[Sequence[EngineSequence] | None] = SimpleQueue()
        self._results: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._num_open = 0
        self.seconds = 0.0  # processor time of all masks
        self.waited_seconds = 0.0  # of it, what the engine waited for
        self.num_masks = 0

    def begin(self, sequences: Sequence[EngineSequence]) -> None:
        """Start on the masks of those of `sequences` that have a grammar. None of them may advance before `finish`."""
        constrained = [sequence for sequence in sequences if sequence.matcher is not None]
        if not constrained:
            return
        for sequence in constrained:
            if sequence.draw.bitmask is None:
                sequence.draw.bitmask = np.zeros(self._num_words, dtype=np.int32)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lmnb-masks", daemon=True)
            self._thread.start()
        self.num_masks += len(constrained)
        self._num_open += 1
        self._jobs.put(constrained)

    def finish(self) -> None:
        """Wait until the masks are there."""
        began = time.perf_counter()
        error = None
        while self._num_open:
            error = self._results.get() or error
            self._num_open -= 1
        self.waited_seconds += time.perf_counter() - began
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._jobs.put(None)

    def _run(self) -> None:
        while (sequences := self._jobs.get()) is not None:
            error: BaseException | None = None
            for sequence in sequences:
                began = time.thread_time()
                try:
                    assert sequence.matcher is not None
                    assert sequence.draw.bitmask is not None
                    if sequence.next_token is not None:
                        set_only(sequence.draw.bitmask, sequence.next_token)
                    else:  # an empty mask is the sampler's error for this row
                        sequence.matcher.fill(sequence.draw.bitmask)
                except Exception as caught:
                    error = caught
                spent = time.thread_time() - began
                sequence.grammar_seconds += spent
                self.seconds += spent
            self._results.put(error)


def set_only(bitmask: np.ndarray, token_id: int) -> None:
    """Allow one token."""
    words = bitmask.view(np.uint32)
    words.fill(0)
    words[token_id // 32] = np.uint32(1) << np.uint32(token_id % 32)
