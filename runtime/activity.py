"""Whether an engine has something to compute, for those who would be in its way then."""

from __future__ import annotations

import math
import time
from threading import Event

from lmnb.runtime.short_turns import ShortTurns

_CALM_SECONDS, _POLL_SECONDS = 1.0, 0.2


class Activity:
    """Told by the engine's thread; any may ask. While there is something to compute, threads take short turns."""

    def __init__(self) -> None:
        self._turns = ShortTurns()
        self._idle_since = time.monotonic()  # never, while there is something to compute
        self._is_over = False

    def begin(self) -> None:
        """There is something to compute. Idempotent, as is `end`."""
        self._idle_since = math.inf
        self._turns.begin()

    def end(self) -> None:
        if self._idle_since == math.inf:
            self._idle_since = time.monotonic()
            self._turns.end()

    def close(self) -> None:
        """There never will be."""
        self._is_over = True
        self._turns.end()

    def wait_until_calm(self, give_up: Event) -> bool:
        """Wait until there has been nothing to compute for a second. False if that will not be seen: the engine was
        closed, or `give_up` set."""
        while not self._is_over:
            if time.monotonic() - self._idle_since > _CALM_SECONDS:
                return True
            if give_up.wait(_POLL_SECONDS):
                break
        return False
