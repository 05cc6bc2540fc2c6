"""Computes masks beside the forward pass, in threads of its own, and counts what they cost.

The libraries let go of the interpreter's lock while they work, and so does the forward pass (on a CPU, the compiled
kernels only in steps of more than a few rows: see `kernels/native.py`).

A mask that takes long holds up its own sequence only: a step does not wait for it, and another thread takes the place
of the one that makes it.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from lmnb.errors import GrammarError, LmnbError
from lmnb.runtime.constraint_size import too_large
from lmnb.runtime.mask_state import MaskState
from lmnb.runtime.process_end import awaited
from lmnb.runtime.recovery import fills
from lmnb.runtime.sequence import Sequence

# How long a step whose forward pass is over waits for its masks. Ordinary ones take some hundredths of a millisecond.
_PATIENCE_SECONDS = 0.005
# How long a mask keeps its thread's place while others wait for one; and how often it is looked whether one does.
_PLACE_SECONDS, _LOOK_SECONDS = 0.002, 0.001
_FIRST_SECONDS = 0.0003  # a request's first mask, for which its library finds out what it keeps
_MOST_DISPLACED = 8  # threads that have lost their place, at once


class MaskWorker:
    """`begin` masks and `wait` for them; whoever has used one sets `Sequence.mask` back. Only the engine's thread calls
    it. The worker's own threads start with the first mask and end with `close`, each after the mask that it is making.

    At most `num_threads` masks have a place. A thread whose mask takes too long loses its place to another thread, and
    comes back when it has made it.
    """

    def __init__(self, vocab_size: int, num_threads: int | None = None, *, wake: Callable[[], None]) -> None:
        """`num_threads`: by default a quarter of the processor's cores; the rest of them is for the model. `wake` is
        called, in any thread, when a mask is there that a step has gone on without."""
        self._num_words = (vocab_size + 31) // 32
        self._num_places = num_threads or min(8, max(1, (os.cpu_count() or 1) // 4))
        self._wake = wake
        self._lock = threading.Lock()  # guards all below, and `Sequence.mask` of those that are begun
        self._work = threading.Condition(self._lock)  # for the threads: there is a mask to make, or an end
        self._made = threading.Condition(self._lock)  # for the engine: all that it waits for are there
        self._todo: deque[Sequence] = deque()
        self._placed: dict[int, tuple[Sequence, float]] = {}  # by id: whose mask has a place, and since when
        self._num_displaced = 0
        self._awaited: set[int] = set()  # sequences whose masks are still missing, while the engine waits
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.seconds = 0.0  # processor time of all masks
        self.waited_seconds = 0.0  # time in which the device waited for them
        self.num_masks = 0

    def begin(self, sequences: Iterable[Sequence]) -> None:
        """Start on the masks of those of `sequences` that have a grammar and no mask yet. None of them may advance
        before its mask is there; where the next token is forced, or planning what is has made it, it is at once.
        RuntimeError where the process may have no thread for it."""
        missing: list[Sequence] = []
        for sequence in sequences:
            if sequence.matcher is None or sequence.mask is not MaskState.NONE:
                continue
            self.num_masks += 1
            if sequence.planned:
                sequence.draw.bitmask = only(sequence.planned[0], self._num_words)
                sequence.mask = MaskState.MADE
            elif sequence.mask_behind is not None:
                sequence.draw.bitmask, sequence.mask_behind = sequence.mask_behind, None
                sequence.mask = MaskState.MADE
            else:
                sequence.draw.bitmask = np.zeros(self._num_words, dtype=np.int32)
                missing.append(sequence)
        if not missing:
            return
        missing.sort(key=lambda sequence: sequence.grammar_pace)  # none waits behind one that is known to take long
        with self._lock:
            self._start_threads(self._num_places)
            for sequence in missing:
                sequence.mask = MaskState.BEGUN
            self._todo.extend(missing)
            self._displace()
            self._work.notify(self._num_wanted(missing))

    def wait(self, sequences: Iterable[Sequence], is_computing: Callable[[], bool]) -> None:
        """Wait until the masks of `sequences` are there, but not much longer than for the forward pass: those that are
        not are late then. A mask that could not be made allows nothing (`SamplerRow.mask_error`). `is_computing`:
        whether the device is busy meanwhile, so that nothing is lost by waiting."""
        constrained = [sequence for sequence in sequences if sequence.matcher is not None]
        if not constrained:
            return
        over: float | None = None  # when the forward pass was seen to be
        since = time.perf_counter()
        with self._lock:
            self._awaited = {sequence.id for sequence in constrained if sequence.mask is not MaskState.MADE}
            while self._awaited:
                if over is None and not is_computing():
                    over = time.perf_counter()
                if over is not None and time.perf_counter() - over >= _PATIENCE_SECONDS:
                    break
                self._displace(since)
                if not self._made.wait(_LOOK_SECONDS) and self._todo:
                    self._work.notify()  # it is more work than was thought: another thread may help
            for sequence in constrained:
                if sequence.id in self._awaited:
                    sequence.mask = MaskState.LATE
            self._awaited.clear()
            self._displace()
            if self._todo:
                self._work.notify_all()
        if over is not None:
            self.waited_seconds += time.perf_counter() - over

    def close(self) -> None:
        """End the threads. One that is at a mask ends after it; nobody waits for that."""
        with self._lock:
            self._is_closed = True
            self._todo.clear()
            self._work.notify_all()

    # -- with the lock held --

    def _num_wanted(self, missing: list[Sequence]) -> int:
        """How many threads are to make these masks. Threads take the interpreter's lock from each other and from the
        engine, so that for what one does at once more of them only take longer."""
        seconds = sum(s.grammar_pace if s.num_sampled else _FIRST_SECONDS for s in missing)
        return min(len(missing), self._num_places, 1 + int(seconds / _LOOK_SECONDS))

    def _displace(self, waits_since: float = math.inf) -> None:
        """Where masks wait for a place, give them those of masks that have taken too long. Time in which the engine has
        not waited does not count: it may have been the engine that held the interpreter's lock."""
        if not self._todo:
            return
        now = time.perf_counter()
        for sequence_id, (sequence, began) in list(self._placed.items()):
            is_slow = sequence.mask is MaskState.LATE or now - max(began, waits_since) >= _PLACE_SECONDS
            if is_slow and self._num_displaced < _MOST_DISPLACED:
                del self._placed[sequence_id]
                self._num_displaced += 1
                self._start_threads(self._num_places + self._num_displaced)
                self._work.notify()

    def _start_threads(self, count: int) -> None:
        """Those that are missing; RuntimeError where a process may have none, so that no mask waits for one."""
        while len(self._threads) < count:
            thread = threading.Thread(target=self._run, name=f"lmnb-masks-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if self._threads:
                    return
                raise
            self._threads.append(thread)

    def _next(self) -> Sequence | None:
        """Whose mask the calling thread makes now, which has a place then; None: there is none to make."""
        if self._is_closed or not self._todo or len(self._placed) == self._num_places:
            return None
        sequence = self._todo.popleft()
        self._placed[sequence.id] = (sequence, time.perf_counter())
        return sequence

    def _end(self, sequence: Sequence, seconds: float) -> bool:
        """Its mask is made. Returns whether a step has gone on without it."""
        self.seconds += seconds
        if self._placed.pop(sequence.id, None) is None:
            self._num_displaced -= 1
        was_late = sequence.mask is MaskState.LATE
        sequence.mask = MaskState.MADE
        if sequence.id in self._awaited:
            self._awaited.remove(sequence.id)
            if not self._awaited:
                self._made.notify()
        return was_late

    # -- the threads --

    def _run(self) -> None:
        with suppress(LmnbError), awaited():  # until the engine closes it, which ends first
            while not self._is_closed:
                self._work_off()
                self._wait()

    def _wait(self) -> None:
        with self._lock:
            while not self._is_closed and (not self._todo or len(self._placed) == self._num_places):
                self._work.wait()

    def _work_off(self) -> None:
        """Make masks as long as there are any. (A call, so that an idle thread holds no sequence.)"""
        with self._lock:
            sequence = self._next()
        while sequence is not None:
            seconds = 0.0 if sequence.output.finished else _make(sequence)
            with self._lock:
                was_late = self._end(sequence, seconds)
                sequence = self._next()
            if was_late:
                self._wake()


def _make(sequence: Sequence) -> float:
    """Make its mask, and return the processor time that it took."""
    draw = sequence.draw
    assert sequence.matcher is not None
    assert draw.bitmask is not None
    began = time.thread_time()
    try:
        # An empty mask is the sampler's error for this row, unless it says nothing of what may come next.
        if not fills(sequence.matcher, draw.bitmask) and sequence.matcher.is_beyond_limits():
            assert sequence.request.sampling.constraint is not None
            draw.mask_error = too_large(sequence.request.sampling.constraint)
    except BaseException as error:  # a library's panic is no Exception
        draw.bitmask.fill(0)
        draw.mask_error = (
            error
            if isinstance(error, Exception)
            else GrammarError(f"the grammar library broke: {error}; simplify the constraint")
        )
    spent = time.thread_time() - began
    sequence.grammar_seconds += spent
    return spent


@functools.lru_cache(maxsize=256)
def only(token_id: int, num_words: int) -> np.ndarray:
    """The mask, int32 [num_words], that allows one token. It is shared."""
    words = np.zeros(num_words, dtype=np.uint32)
    words[token_id // 32] = np.uint32(1) << np.uint32(token_id % 32)
    words.setflags(write=False)
    return words.view(np.int32)
