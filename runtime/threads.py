"""Threads that a process may not have: said in one line."""

from __future__ import annotations

import threading

from lmnb.errors import OutOfMemoryError

ADVICE = (
    "this process may have no more threads, or no memory for their stacks: raise its limits (ulimit -v, ulimit -u, a "
    "container's), or end what else runs in it"
)


def start(thread: threading.Thread) -> None:
    """Start `thread`. OutOfMemoryError where the process may have no more of them."""
    try:
        thread.start()
    except RuntimeError as error:
        if not is_refused(error):
            raise
        raise OutOfMemoryError(f"a thread ({thread.name}) cannot be started: {ADVICE}") from None


def is_refused(error: BaseException) -> bool:
    """Whether this is Python's error for a thread that the system did not give it."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)
