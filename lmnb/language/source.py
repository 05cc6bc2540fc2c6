"""Where in the user's source something was appended."""

from __future__ import annotations

import linecache
import sys
import warnings
from types import FrameType


class SourceLine(int):
    """A line's number, which also knows the line's text."""

    file: str

    def __new__(cls, number: int, file: str = "") -> SourceLine:
        """The line `number` of `file`, a path or a name that `linecache` knows, as it does notebooks' cells."""
        line = super().__new__(cls, number)
        line.file = file
        return line

    @property
    def text(self) -> str:
        """The line as it stands in the source, without indentation; empty if that cannot be read."""
        return linecache.getline(self.file, self).strip()

    def __deepcopy__(self, memo: object) -> SourceLine:
        return self

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.file


def caller_line() -> SourceLine | None:
    """The line of the nearest frame that is not lmnb's own: in a program's file or a notebook's cell."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("lmnb.") and module != "contextlib":
            return SourceLine(frame.f_lineno, frame.f_code.co_filename)
        frame = frame.f_back
    return None


def warn_at_caller(message: str) -> None:
    """Warn at the line that `caller_line` finds, however deep in lmnb this is called."""
    line = caller_line()
    if line is None:
        warnings.warn(message, stacklevel=2)
    else:
        warnings.warn_explicit(message, UserWarning, line.file, int(line))


def source_text(line: int | None) -> str:
    """The text of a line that `caller_line` found, else ""."""
    return line.text if isinstance(line, SourceLine) else ""
