"""What runs cost: tokens, seconds and money, run by run, and what reuse saved. Fed by the runs' events alone.

A ledger keeps sums, neither runs nor texts.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lmnb.language.events import GenFinished, GenStarted, RunEvent, RunFinished, Status
from lmnb.language.run import Run
from lmnb.language.run_observers import on_run

MILLION = 1_000_000
FEWEST = 3  # prefills, and
SPREAD = 32  # tokens between the shortest and the longest, from which on a speed can be told

Price = Sequence[float]  # of a million tokens: prompt, generated, and, where it differs, prompt that was cached


@dataclass
class Line:
    """Least squares through points (tokens, seconds): what one more token takes, whatever each call takes anyway.

    Never more than a token took in the quickest call, so that calls that waited for something do not tell.
    """

    count: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    best: float = math.inf  # the least y/x

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        self.join(Line(1, x, y, x * x, x * y, x, x, y / x))

    def join(self, other: Line) -> None:
        """Add another line's points."""
        self.count += other.count
        self.x, self.y = self.x + other.x, self.y + other.y
        self.xx, self.xy = self.xx + other.xx, self.xy + other.xy
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.best = min(self.best, other.best)

    def slope(self) -> float | None:
        """Seconds for one more token; None where the points do not tell."""
        if self.count < FEWEST or self.high - self.low < SPREAD:
            return None
        slope = (self.count * self.xy - self.x * self.y) / (self.count * self.xx - self.x * self.x)
        return min(slope, self.best) if slope > 0 else None


@dataclass
class Account:
    """The sums of one run, or of several. Prompt tokens = `reused` + `computed`."""

    cell: str | None
    program: str
    model: str
    runs: int = 1
    reused: int = 0
    computed: int = 0
    generated: int = 0
    forced: int = 0  # of the generated ones: those that a grammar left no choice about, added without a step each
    seconds: float = 0.0
    status: Status = "running"
    prefill: Line = field(default_factory=Line)
    _constrained: set[int] = field(default_factory=set)  # branches whose generation may wait for its grammar

    def take(self, event: RunEvent) -> None:
        """Add what an event says."""
        if isinstance(event, GenStarted):
            if event.constraint is not None:
                self._constrained.add(event.branch)
        elif isinstance(event, GenFinished):
            self.reused += event.reused
            self.computed += event.computed
            self.generated += event.generated
            self.forced += event.forced
            timed = event.first_token_seconds is not None and event.branch not in self._constrained
            self._constrained.discard(event.branch)
            if timed and event.computed:
                self.prefill.add(event.computed, _prefill_seconds(event))
        elif isinstance(event, RunFinished):
            self.status, self.seconds = event.status, event.seconds

    def add(self, other: Account) -> None:
        """Add another account's sums."""
        self.runs += other.runs
        self.reused += other.reused
        self.computed += other.computed
        self.generated += other.generated
        self.forced += other.forced
        self.seconds += other.seconds
        self.prefill.join(other.prefill)
        if other.status != "done":
            self.status = other.status

    def saved_seconds(self) -> float | None:
        """About how long computing the reused tokens would have taken; None where too little was timed."""
        slope = self.prefill.slope()
        return None if slope is None else self.reused * slope

    def cost(self, price: Price) -> float:
        """The money, in the price's currency."""
        prompt, generated, cached = price[0], price[1], price[2] if len(price) > 2 else price[0]
        return (self.computed * prompt + self.reused * cached + self.generated * generated) / MILLION


class Ledger:
    """Accounts of all runs from `open` to `close`. `current_cell`: the cell of a run that does not know its own."""

    def __init__(self, current_cell: Callable[[], str | None] = lambda: None) -> None:
        self._current_cell = current_cell
        self._lock = threading.Lock()
        self._accounts: list[Account] = []
        self._end: Callable[[], None] | None = None

    def open(self) -> None:
        """Follow every run that begins from now on."""
        if self._end is None:
            self._end = on_run(self._follow)

    def close(self) -> None:
        """Follow no new runs."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def clear(self) -> None:
        """Forget what was counted."""
        with self._lock:
            self._accounts.clear()

    def entries(self) -> list[Account]:
        """The accounts so far: one for each cell, program and model, in the order of their first runs."""
        grouped: dict[tuple[str | None, str, str], Account] = {}
        with self._lock:
            accounts = list(self._accounts)
        for account in accounts:
            key = (account.cell, account.program, account.model)
            if key not in grouped:
                grouped[key] = Account(*key, runs=0, status="done")
            grouped[key].add(account)
        return list(grouped.values())

    def totals(self) -> dict[str, Account]:
        """The accounts so far, by model."""
        found: dict[str, Account] = {}
        for entry in self.entries():
            found.setdefault(entry.model, Account(None, "", entry.model, runs=0, status="done")).add(entry)
        return found

    def _follow(self, run: Run) -> None:
        account = Account(run.cell or self._current_cell(), run.program, run.backend.name)
        with self._lock:
            self._accounts.append(account)
        run.subscribe(account.take)


def total_cost(entries: Sequence[Account], prices: Mapping[str, Price]) -> float | None:
    """The money of all entries whose model has a price; None if none has."""
    costs = [entry.cost(prices[entry.model]) for entry in entries if entry.model in prices]
    return sum(costs) if costs else None


def _prefill_seconds(event: GenFinished) -> float:
    """The time to the first token, less one step of decoding, as long as the later ones took."""
    first = event.first_token_seconds or 0.0
    step = (event.seconds - first) / (event.generated - 1) if event.generated > 1 else 0.0
    return max(first - step, first / 4)
