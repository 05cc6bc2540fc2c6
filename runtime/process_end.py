"""The end of the process: work inside libraries written in C++ is waited for, and none is begun any more.

A thread that comes back from there to an interpreter that has ended is ended on the spot, which C++ does not allow: it
aborts the process, whatever its exit code was. Interrupts do not shorten the wait, as they would bring just that about;
a bound does.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lmnb.errors import LmnbError

EXIT_SECONDS = 10.0  # a step, a tensor that is read, an import: each ends well within this
ENDING = threading.Event()
"""Set when the process ends: nothing more is worth waiting for."""
_awaited: dict[threading.Event, Callable[[], None] | None] = {}  # by what tells its end: what stops it


@contextmanager
def awaited(stop: Callable[[], None] | None = None) -> Iterator[None]:
    """The process does not end, in any thread, while this is open. `stop` is called once it wants to. Raises LmnbError
    if it ends already."""
    over = threading.Event()
    _awaited[over] = stop
    try:
        if ENDING.is_set():
            raise ending_error()
        yield
    finally:
        _awaited.pop(over, None)
        over.set()


def ending_error() -> LmnbError:
    """What to tell a thread that begins something when it is too late."""
    return LmnbError(
        "the process is ending, so nothing can be loaded or begun any more: have the main thread wait for this thread, "
        "with thread.join()"
    )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """No interrupt comes while this is open in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:  # else it was not Python that set it
            signal.signal(signal.SIGINT, before)


def end_all() -> None:
    """Stop all work and wait for it."""
    ENDING.set()
    with uninterrupted():
        deadline = time.monotonic() + EXIT_SECONDS
        work = list(_awaited.items())
        for _, stop in work:
            if stop is not None:
                with suppress(Exception):  # the others are to be stopped, too
                    stop()
        for over, _ in work:
            over.wait(max(0.0, deadline - time.monotonic()))


# The first finalizer has those of all that is imported meanwhile run after this, and not when their modules are gone.
weakref.finalize(ENDING, bool)
atexit.register(end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_awaited.clear)
