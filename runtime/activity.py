"""Whether an engine has something to compute, for those who would be in its way then."""

from __future__ import annotations

from threading import Event

from lmnb.runtime.short_turns import ShortTurns, calm_seconds

_CALM_SECONDS, _POLL_SECONDS = 1.0, 0.2


class Activity:
    """Told by the engine's thread; any may ask. While there is something to compute, threads take short turns."""

    def __init__(self) -> None:
        self._turns = ShortTurns()
        self._is_over = False

    def begin(self) -> None:
        """There is something to compute. Idempotent, as is `end`."""
        self._turns.begin()

    def end(self) -> None:
        self._turns.end()

    def close(self) -> None:
        """There never will be."""
        self._is_over = True
        self._turns.end()

    def wait_until_calm(self, give_up: Event) -> bool:
        """Wait until no engine of this process has had anything to compute for a second: they share the interpreter.
        False if that will not be seen: this one was closed, or `give_up` set."""
        while not self._is_over:
            if calm_seconds() > _CALM_SECONDS:
                return True
            if give_up.wait(_POLL_SECONDS):
                break
        return False
