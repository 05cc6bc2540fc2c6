"""What every measurement shares: interleaved rounds, medians, and a description of the machine."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def environment() -> dict[str, Any]:
    """The machine and the versions a figure belongs to."""
    import torch

    cpu = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "lmnb")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed: run from a checkout"


def interleaved(rounds: int, **measures: Callable[[], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Take each measure `rounds` times, A B A B, after one round that does not count; medians by name and figure."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name, measure in measures.items():
            figures = measure()
            print(f"  round {number}: {name} {_short(figures)}", file=sys.stderr)
            if number:
                taken[name].append(figures)
    return {name: medians(results) for name, results in taken.items()}


def medians(results: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {figure: round(statistics.median(r[figure] for r in results), 4) for figure in results[0]}


def ratio(report: dict[str, dict[str, float]], figure: str, peer: str) -> float:
    """How many times the peer's figure ours is (above 1: lmnb has more)."""
    return round(report["lmnb"][figure] / report[peer][figure], 2)


def _short(figures: dict[str, float]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in figures.items())


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return file.readlines()
    except OSError:
        return []
