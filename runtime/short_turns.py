"""How long a thread of Python goes on while another waits for it: not long, while something here is to be quick.

A thread that comes back from an operation of torch, or from waiting, waits for the end of another's turn: 5 ms by
Python's default, some fifteen times a step. Beside a program that computes in Python, an engine would stand still most
of the time. Short turns cost something only where threads do compete.

The interval belongs to the process, and so does this state.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType

TURN_SECONDS = 0.000021  # a number that nobody else would choose: see `begin`
_lock = threading.Lock()
_wanting: set[ShortTurns] = set()


class _Turns:
    usual = 0.005  # how long they are without us, as far as is known
    short = 0.0  # how long we have made them, while somebody wants it
    calm_since = time.monotonic()  # nobody has wanted it


class ShortTurns:
    """One wish for them. They are short as long as there is one."""

    def begin(self) -> None:
        """Idempotent, as is `end`."""
        if self in _wanting:
            return
        with _lock:
            if not _wanting:
                _shorten()
            _wanting.add(self)

    def end(self) -> None:
        if self not in _wanting:
            return
        with _lock:
            _wanting.discard(self)
            if not _wanting:
                _lengthen()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end()


def calm_seconds() -> float:
    """How long nobody has wanted short turns, anywhere in this process."""
    return 0.0 if _wanting else time.monotonic() - _Turns.calm_since


def _shorten() -> None:
    now = sys.getswitchinterval()
    # Ours may be there though nobody wants it: somebody has read it meanwhile, and put it back later.
    if not _is(now, TURN_SECONDS):
        _Turns.usual = now
    sys.setswitchinterval(min(TURN_SECONDS, _Turns.usual))
    _Turns.short = sys.getswitchinterval()


def _lengthen() -> None:
    """Nobody wants short ones any more. What somebody else has set meanwhile stays."""
    if _Turns.short and _is(sys.getswitchinterval(), _Turns.short):
        sys.setswitchinterval(_Turns.usual)
    _Turns.short, _Turns.calm_since = 0.0, time.monotonic()


def _is(interval: float, other: float) -> bool:
    """Python keeps whole microseconds."""
    return abs(interval - other) < 0.0000005


def _forget_all() -> None:
    """In a fork: who wanted them are threads of the process before it, one of them maybe halfway through `begin` or
    `end`."""
    global _lock
    _lock = threading.Lock()
    _wanting.clear()
    _lengthen()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
