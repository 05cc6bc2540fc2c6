"""`python -m benchmarks cpu` (or `view`, or nothing for both): prints one JSON object."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import cpu, view
from benchmarks.harness import environment

SUITES = {"cpu": cpu.measure, "view": view.measure}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="what to measure; everything by default")
    parser.add_argument("--rounds", type=int, default=3, help="how often each figure is taken (median; default 3)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="one dtype only; both by default")
    options = parser.parse_args()
    report = {"environment": environment()}
    for name in options.suites or SUITES:
        print(f"measuring {name} ...", file=sys.stderr)
        report[name] = SUITES[name](options)
    print(json.dumps(report, indent=2))


main()
