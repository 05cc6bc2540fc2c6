"""The runs of this process that are not over, whoever started them, so that one call can stop them all.

Keeps none of them alive.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmnb.language.run import Run


class Unfinished:
    """Runs from their start to their end. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()

    def add(self, run: Run) -> None:
        """A run has begun."""
        with self._lock:
            self._runs.add(run)

    def discard(self, run: Run) -> None:
        """It is over."""
        with self._lock:
            self._runs.discard(run)

    def at_work(self) -> list[Run]:
        """Those that do something; a state at rest, which may go on one day, does not."""
        with self._lock:
            runs = list(self._runs)
        return [run for run in runs if run.at_work]


unfinished = Unfinished()


def runs_at_work() -> list[Run]:
    """Every run of this process that still does something."""
    return unfinished.at_work()


def cancel_runs(timeout: float = 1.0) -> int:
    """Cancel every run that still does something, and wait until its partial text is in place, in all at most
    `timeout` seconds. Returns how many there were."""
    runs = runs_at_work()
    for run in runs:
        run.cancel()
    deadline = time.monotonic() + timeout
    for run in runs:
        run.settle(deadline - time.monotonic())
    return len(runs)
