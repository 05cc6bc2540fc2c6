"""`python -m benchmarks cpu` (or another of the suites below; `gpu` needs a CUDA device): prints JSON."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import cpu, dspy_rag, gpu, join, language, strict, structured, tree, view, views
from benchmarks.harness import environment

SUITES = {
    "cpu": cpu.measure,
    "view": view.measure,
    "views": views.measure,
    "gpu": gpu.measure,
    "structured": structured.measure,
    "join": join.measure,
    "strict": strict.measure,
    "language": language.measure,
    "dspy": dspy_rag.measure,
    "tree": tree.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="what to measure; cpu and view by default")
    parser.add_argument("--rounds", type=int, default=3, help="how often each figure is taken (median; default 3)")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], help="of the cpu suite: one dtype only")
    parser.add_argument("--llama-python", help="of the cpu suite: a Python that has llama-cpp-python, as another peer")
    parser.add_argument("--only", nargs="*", help="of the gpu suite: names of workloads, start, ablations")
    parser.add_argument("--trace", action="store_true", help="of the gpu suite: where one run's time went, by step")
    options = parser.parse_args()
    report = {"environment": environment()}
    for name in options.suites or ("cpu", "view"):
        print(f"measuring {name} ...", file=sys.stderr)
        report[name] = SUITES[name](options)
    print(json.dumps(report, indent=2))


main()
