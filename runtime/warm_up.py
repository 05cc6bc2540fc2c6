"""What the first constraint of a model would wait for, and hold others up by, done in the background of its loading.

Nobody waits for it. Tables of the vocabulary are made while the weights are read, and are there before most models are.
The largest library is imported when the model is there, so that no load is slower for it. That is Python all through:
threads take shorter turns meanwhile, so that it delays the first tokens by little. (A thread that comes back from an
operation of torch waits for the end of another's turn.)
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

_TURN_SECONDS = 0.00002  # a step of many small operations may wait so long behind each
_EXIT_SECONDS = 10.0
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def warm_up(*steps: Callable[[], None]) -> threading.Thread:
    """Take `steps`, one after another, in a thread of their own. What fails is tried again when it is needed, and told
    then."""
    thread = threading.Thread(target=_run, args=(steps,), name="lmnb-warm-up", daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


def _run(steps: Sequence[Callable[[], None]]) -> None:
    with short_turns():
        for step in steps:
            with suppress(Exception):  # of whatever kind: who needs it meets it
                step()


_turns_lock = threading.Lock()
_turns: list[float] = []  # how long turns were, for each of those who want short ones


@contextmanager
def short_turns() -> Iterator[None]:
    """Let threads of Python take turns more often. Several may ask for it at once."""
    with _turns_lock:
        _turns.append(_turns[0] if _turns else sys.getswitchinterval())
        sys.setswitchinterval(min(_TURN_SECONDS, _turns[0]))
    try:
        yield
    finally:
        with _turns_lock:
            usual = _turns.pop()
            if not _turns:
                sys.setswitchinterval(usual)


@atexit.register
def _wait_for_all() -> None:
    """A process that ends while a library is being imported may crash."""
    for thread in list(_threads):
        thread.join(_EXIT_SECONDS)
