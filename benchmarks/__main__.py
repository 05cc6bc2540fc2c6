"""`python -m benchmarks cpu` (or another of the suites below; `gpu` and `ahead` need a CUDA device): prints JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import (
    busy_notebook,
    cpu,
    dspy_rag,
    fp8_keys,
    gpu,
    gpu_ahead,
    join,
    language,
    long,
    quantization,
    strict,
    structured,
    tree,
    view,
    views,
)
from benchmarks.harness import environment

SUITES = {
    "cpu": cpu.measure,
    "view": view.measure,
    "views": views.measure,
    "gpu": gpu.measure,
    "ahead": gpu_ahead.measure,
    "fp8_keys": fp8_keys.measure,
    "structured": structured.measure,
    "join": join.measure,
    "strict": strict.measure,
    "language": language.measure,
    "long": long.measure,
    "quantization": quantization.measure,
    "dspy": dspy_rag.measure,
    "tree": tree.measure,
    "busy": busy_notebook.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="what to measure; cpu and view by default")
    parser.add_argument("--rounds", type=int, default=3, help="how often each figure is taken (median; default 3)")
    parser.add_argument(
        "--dtype", choices=["auto", "bfloat16", "float32"], help="of the cpu and long suites: one dtype only"
    )
    parser.add_argument("--kernels", action="store_true", help="of the cpu suite: the compiled kernels alone")
    parser.add_argument("--llama-python", help="of the cpu and long suites: a Python with llama-cpp-python, as a peer")
    parser.add_argument("--only", nargs="*", help="of the gpu, ahead and structured suites: names of their parts")
    parser.add_argument("--write-dummy", type=Path, help="of the structured suite: write such a folder, and end")
    parser.add_argument("--quantization", default="none", help="of the gpu suite: weights in 8 bits, int8 or fp8")
    parser.add_argument(
        "--dummy", type=Path, help="of the structured, ahead and busy suites: a folder whose weights are made up"
    )
    parser.add_argument("--kv-cache-dtype", default="auto", help="of the gpu suite: what keys and values are stored in")
    parser.add_argument("--trace", action="store_true", help="of the gpu suite: where one run's time went, by step")
    parser.add_argument("--json", action="store_true", help="print JSON, which is what is printed in any case")
    options = parser.parse_args()
    report = {"environment": environment()}
    for name in options.suites or ("cpu", "view"):
        print(f"measuring {name} ...", file=sys.stderr)
        report[name] = SUITES[name](options)
    print(json.dumps(report, indent=2))


main()
