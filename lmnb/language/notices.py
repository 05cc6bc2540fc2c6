"""Things that a user should hear once, where their program says what they are about."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from types import FrameType

from lmnb.backends.base import Backend

_told: weakref.WeakKeyDictionary[Backend, set[str]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def tell_once(backend: Backend, message: str) -> None:
    """Warn with `message` at the nearest line that is not lmnb's own, unless that was said of `backend` before."""
    backend = getattr(backend, "inner", backend)
    with _lock:
        try:
            told = _told.setdefault(backend, set())
        except TypeError:  # a backend of the user's that cannot be a key: it is told of each time
            told = set()
        if message in told:
            return
        told.add(message)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("lmnb."):
        frame = frame.f_back
    if frame is None:
        warnings.warn(message, stacklevel=2)
    else:
        name = str(frame.f_globals.get("__name__", ""))
        warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno, name)
