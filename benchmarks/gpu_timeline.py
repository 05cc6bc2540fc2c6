"""Where one run's time went on a GPU, step by step: events around what each step queues there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from lmnb.runtime.engine import Engine


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class _Step:
    """One forward pass and the choice behind it. `tokens`: how many it computes."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.begin: torch.cuda.Event | None = None  # its first input is on its way
        self.forward_end: torch.cuda.Event | None = None
        self.choose_begin: torch.cuda.Event | None = None
        self.end: torch.cuda.Event | None = None

    def forward(self) -> float:
        return _seconds(self.begin, self.forward_end)

    def wait(self) -> float:
        """Seconds between forward pass and choice."""
        return _seconds(self.forward_end, self.choose_begin)

    def choice(self) -> float:
        return _seconds(self.choose_begin, self.end)


def _seconds(begin: Any, end: Any) -> float:
    return 0.0 if begin is None or end is None else float(begin.elapsed_time(end)) / 1e3


def timeline(engine: Engine, run: Callable[[], float]) -> dict[str, Any]:
    """Seconds the device computed in one `run`, and waited for its next forward pass or choice, and the longest waits
    by step. `run` returns the seconds that it took. (A wait within a choice of several kernels counts as computing.)"""
    executor: Any = engine._loop._executor
    run_step, choose, upload = executor.run, executor.choose, executor._staging.upload
    steps: list[_Step] = []

    def timed_upload(*args: Any) -> Any:
        if steps and steps[-1].begin is None:
            steps[-1].begin = _now()
        return upload(*args)

    def timed_run(rows: Any) -> Any:
        steps.append(_Step(sum(row.end - row.start for row in rows)))
        result = run_step(rows)
        steps[-1].forward_end = steps[-1].end = _now()
        return result

    def timed_choose(built: Any, logits: Any) -> Any:
        steps[-1].choose_begin = _now()
        tokens = choose(built, logits)
        steps[-1].end = _now()
        return tokens

    executor.run, executor.choose, executor._staging.upload = timed_run, timed_choose, timed_upload
    try:
        took = run()
    finally:
        executor.run, executor.choose, executor._staging.upload = run_step, choose, upload
    torch.cuda.synchronize()
    forward, chosen = [step.forward() for step in steps], [step.choice() for step in steps]
    gaps = [_seconds(a.end, b.begin) for a, b in itertools.pairwise(steps)]
    waits = [step.wait() for step in steps]
    worst = sorted(range(len(gaps)), key=lambda i: -gaps[i])[:6]
    return {
        "seconds": round(took, 4),
        "steps": len(steps),
        "forward": round(sum(forward), 4),
        "choosing": round(sum(chosen), 4),
        "waiting_between_steps": round(sum(gaps), 4),
        "waiting_to_choose": round(sum(waits), 4),
        "before_and_after": round(took - sum(forward) - sum(chosen) - sum(gaps) - sum(waits), 4),
        "longest_waits": {f"after step {i}": round(gaps[i], 4) for i in worst},
        "first_steps": [(step.tokens, round(each, 4)) for step, each in zip(steps[:8], forward, strict=False)],
    }
