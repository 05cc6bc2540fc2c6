"""What each row of a batch has cost: a listener that adds up a run's events by row. Knows nothing of states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lmnb.language.events import BranchOpened, GenFinished, RunEvent
from lmnb.language.run import Run


@dataclass
class Usage:
    """Tokens of one row, over all its generations and choices, and the seconds that these took."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts, reused
    completion_tokens: int = 0
    seconds: float = 0.0


class RowUsage:
    """Follows the rows that one batch begins; what their forks and calls do counts for the row."""

    def __init__(self) -> None:
        self.rows: dict[int, Usage] = {}
        self._row_of: dict[int, int] = {}  # by branch
        self._place = (0, 0)

    def follow(self, run: Run, parent: int, fork: int) -> Callable[[], None]:
        """Listen to the rows that are opened in `fork` of the branch `parent`. Returns what ends that."""
        self._place = (parent, fork)
        return run.subscribe(self._add)

    @property
    def hit_rate(self) -> float:
        """Reused prompt tokens / prompt tokens, over all rows."""
        rows = list(self.rows.values())
        prompt = sum(row.prompt_tokens for row in rows)
        return sum(row.cached_tokens for row in rows) / prompt if prompt else 0.0

    def _add(self, event: RunEvent) -> None:
        if isinstance(event, BranchOpened):
            row = event.row if (event.parent, event.fork) == self._place else self._row_of.get(event.parent)
            if row is not None:
                self._row_of[event.branch] = row
                self.rows.setdefault(row, Usage())
        elif isinstance(event, GenFinished) and event.branch in self._row_of:
            usage = self.rows[self._row_of[event.branch]]
            usage.prompt_tokens += event.reused + event.computed
            usage.cached_tokens += event.reused
            usage.completion_tokens += event.generated
            usage.seconds += event.seconds
