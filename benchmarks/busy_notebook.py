"""Generating in the background while the notebook's own thread computes in Python, in one process.

Requests of 20 random prompt tokens, greedy, end tokens ignored; tokens a second of all together for two seconds, behind
a second that does not count. `alone`: the main thread sleeps. `busy`: it fills a dictionary, without a pause.
`busy_usual_turns`: the same, with threads of Python taking the turns of 5 ms that they have without lmnb.
`idle`: it does so with nothing to generate. `transformers` (one request, on a CPU): that library's `generate` in a
thread. python_share: what is left of the main thread's speed in `idle`. keeps: the part of the tokens that come alone,
beside a busy thread.

The model is the embedded one on a CPU, or that of `--dummy`, with weights made up (see the structured suite).
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.cpu import Transformers
from benchmarks.harness import interleaved
from lmnb.backends.local import Runtime
from lmnb.runtime import short_turns
from lmnb.runtime.loading import load_model
from lmnb.runtime.request import Request, SamplingParams

_SECONDS, _FIRST_SECONDS = 2.0, 1.0
_IDLE_SECONDS = 0.1  # after which turns are the usual ones again
_MOST_TOKENS = 4000
_USUAL_TURN_SECONDS = 0.005
_WAYS: dict[str, dict[str, Any]] = {
    "idle": {"is_busy": True, "count": 0},
    "alone": {"is_busy": False},
    "busy": {"is_busy": True},
    "busy_usual_turns": {"is_busy": True, "turn": _USUAL_TURN_SECONDS},
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, by how many requests there are at once."""
    loaded = load_model(options.dummy, load_format="auto" if options.dummy is None else "dummy")
    on_gpu = loaded.model.kv_layout.device.type == "cuda"
    peer = None if on_gpu or options.dummy is not None else _Transformers()
    report: dict[str, Any] = {"device": str(loaded.model.kv_layout.device), "model": loaded.model.name}
    with Runtime(loaded) as runtime:
        for count in (1, 8, 64) if on_gpu else (1, 8):
            ways: dict[str, Callable[[], dict[str, float]]] = {
                name: partial(_lmnb, runtime, **{"count": count, **way}) for name, way in _WAYS.items()
            }
            if peer is not None and count == 1:
                ways["transformers_alone"] = partial(peer.run, is_busy=False)
                ways["transformers_busy"] = partial(peer.run, is_busy=True)
            figures: dict[str, Any] = interleaved(options.rounds, **ways)
            report[str(count)] = figures
            rate, speed = (
                {name: each[of] for name, each in figures.items()} for of in ("tokens_per_second", "python_per_second")
            )
            busy = [name for name in rate if "busy" in name]
            figures["keeps"] = {name: round(rate[name] / rate[_alone(name)], 3) for name in busy}
            figures["python_share"] = {name: round(speed[name] / speed["idle"], 3) for name in busy}
    return report


def _alone(name: str) -> str:
    return "transformers_alone" if name.startswith("transformers") else "alone"


def _lmnb(runtime: Runtime, *, count: int, is_busy: bool, turn: float = short_turns.TURN_SECONDS) -> dict[str, float]:
    short_turns.TURN_SECONDS, usual = turn, short_turns.TURN_SECONDS
    sampling = SamplingParams(max_new_tokens=_MOST_TOKENS, temperature=0.0, ignore_eos=True)
    handles = [runtime.submit(Request(input_ids=_prompt(number), sampling=sampling)) for number in range(count)]
    try:
        return _taken(lambda: runtime.status().generated_tokens, is_busy)
    finally:
        short_turns.TURN_SECONDS = usual
        for handle in handles:
            handle.cancel()
        for handle in handles:
            handle.result()
        time.sleep(_IDLE_SECONDS)


def _taken(num_tokens: Callable[[], int], is_busy: bool) -> dict[str, float]:
    """What comes while the main thread computes, or sleeps."""
    compute = _python_speed if is_busy else _sleep
    compute(_FIRST_SECONDS)
    before, began = num_tokens(), time.perf_counter()
    python = compute(_SECONDS)
    tokens, seconds = num_tokens() - before, time.perf_counter() - began
    return {"tokens_per_second": tokens / seconds, "python_per_second": python}


def _python_speed(seconds: float) -> float:
    """How often a second the main thread does what it does."""
    found: dict[int, int] = {}
    until = time.perf_counter() + seconds
    times = 0
    while time.perf_counter() < until:
        for i in range(1000):
            found[i % 97] = i * 3 % 11
        times += 1
    return times / seconds


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return 0.0


def _prompt(number: int) -> tuple[int, ...]:
    return tuple(random.Random(number).choices(range(1000, 9000), k=20))


class _Transformers:
    """The embedded model by transformers, generating in a thread."""

    def __init__(self) -> None:
        self._peer = Transformers("auto")

    def run(self, *, is_busy: bool) -> dict[str, float]:
        counted = _Counter()
        thread = threading.Thread(
            target=self._peer.run, args=([_prompt(0)], _MOST_TOKENS), kwargs={"stopping_criteria": [counted]}
        )
        thread.start()
        try:
            return _taken(lambda: counted.count, is_busy)
        finally:
            counted.is_over = True
            thread.join()


class _Counter:
    """Counts tokens, and ends the generation when told."""

    def __init__(self) -> None:
        self.count, self.is_over = 0, False

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.count += 1
        return torch.full((len(ids),), self.is_over)
