"""Where in the user's source something was appended."""

from __future__ import annotations

import sys
from types import FrameType


def caller_line() -> int | None:
    """The line of the nearest frame that is not lmnb's own: in a program's file or a notebook's cell."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("lmnb.") and module != "contextlib":
            return frame.f_lineno
        frame = frame.f_back
    return None
