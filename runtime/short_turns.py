"""How long a thread of Python goes on while another waits for it: not long, while something here is to be quick.

A thread that comes back from an operation of torch, or from waiting, waits for the end of another's turn: 5 ms by
Python's default, dozens of times a step. Beside a program that computes in Python, an engine would stand still most of
the time. Short turns cost something only where threads do compete.
"""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

TURN_SECONDS = 0.00002
_lock = threading.Lock()
_wanting: set[ShortTurns] = set()
_usual = [0.0]  # how long turns are without them, while somebody wants them


class ShortTurns:
    """One wish for them, for the whole process. They are short as long as there is one."""

    def begin(self) -> None:
        """Idempotent, as is `end`."""
        if self in _wanting:
            return
        with _lock:
            if not _wanting:
                _usual[0] = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN_SECONDS, _usual[0]))
            _wanting.add(self)

    def end(self) -> None:
        if self not in _wanting:
            return
        with _lock:
            _wanting.discard(self)
            if not _wanting and _usual[0]:
                _lengthen()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end()


def _forget_all() -> None:
    """In a fork: who wanted them are threads of the process before it, one of them maybe halfway through `begin` or
    `end`."""
    global _lock
    _lock = threading.Lock()
    _wanting.clear()
    if _usual[0]:
        _lengthen()


def _lengthen() -> None:
    """Nobody wants short ones any more. What somebody else has set meanwhile stays."""
    if sys.getswitchinterval() <= TURN_SECONDS:
        sys.setswitchinterval(_usual[0])
    _usual[0] = 0.0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
