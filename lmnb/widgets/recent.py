"""The last runs that were shown live: kept, so that a reader can go on from them although their states have gone.

Bounded in number and in size.
"""

from __future__ import annotations

import threading
from collections import deque

from lmnb.language.run import Run

MOST_RUNS = 16
MOST_EVENTS = 100_000  # of all of them together


class RecentRuns:
    """Runs, oldest first. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: deque[Run] = deque(maxlen=MOST_RUNS)

    def add(self, run: Run) -> None:
        """Keep a run that has ended; forget the oldest ones that are too much."""
        with self._lock:
            if run in self._runs:
                self._runs.remove(run)
            self._runs.append(run)
            while len(self._runs) > 1 and sum(run.num_events for run in self._runs) > MOST_EVENTS:
                self._runs.popleft()

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._runs.clear()


recent_runs = RecentRuns()
