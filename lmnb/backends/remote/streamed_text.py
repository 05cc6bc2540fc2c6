"""What of a streamed text may be shown: never the beginning of a stop string, nor half a character.

Servers differ in what they hold back, and text that was shown cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StreamedText:
    """Takes the whole text so far, again and again; gives what is new and sure."""

    def __init__(self, stops: Sequence[str], *, hold_all: bool = False) -> None:
        self._stops = tuple(stops)
        self._hold_all = hold_all  # nothing is sure before the end
        self.shown = ""

    def take(self, text: str, *, last: bool = False) -> str:
        """What `text`, all that has come, adds to what was shown."""
        sure = text if last else text[: self._sure(text)]
        if not sure.startswith(self.shown):
            return ""
        new = sure[len(self.shown) :]
        self.shown = sure
        return new

    def _sure(self, text: str) -> int:
        if self._hold_all:
            return len(self.shown)
        end = len(text.rstrip("\ufffd"))
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for start in range(max(0, end - longest), end):
            if any(stop.startswith(text[start:end]) for stop in self._stops):
                return start
        return end
