"""What strict mode costs: the figures of the cpu suite, default engine and `deterministic=True`, side by side."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.cpu import Lmnb, figures
from benchmarks.harness import interleaved


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both engines, by dtype; `cost` above 1: strict mode takes so many times as long."""
    dtypes = [options.dtype] if options.dtype else ["bfloat16", "float32"]
    return {dtype: compare(dtype, options.rounds) for dtype in dtypes}


def compare(dtype: str, rounds: int) -> dict[str, Any]:
    """Both engines in one dtype."""
    default, strict = Lmnb(dtype), Lmnb(dtype, deterministic=True)
    result = interleaved(rounds, default=lambda: figures(default), strict=lambda: figures(strict))
    default.engine.close()
    strict.engine.close()
    rates = {name: result["default"][name] / result["strict"][name] for name in result["default"]}
    cost = {name: round(1 / rate if "seconds_" in name else rate, 2) for name, rate in rates.items()}
    return {**result, "cost": cost}
