"""How the kernels' benchmarks take times on a GPU, and the sizes of Llama-3.1-8B."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

HEADS, KV_HEADS, DIM, HIDDEN, INNER, VOCAB = 32, 8, 128, 4096, 14336, 128256
DEVICE = "cuda"


def seconds(call: Callable[[int], object], repeat: int = 15) -> float:
    """Median time of one call; `call(i)` is the i-th."""
    for i in range(3):
        call(i)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeat)]
    for i, (begin, end) in enumerate(events):
        begin.record()
        call(i)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events) / 1e3


def graphed(call: Callable[[int], object], count: int = 12) -> float:
    """Time of one of `count` calls captured in a graph: without launch gaps."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(i)
    return seconds(lambda _: graph.replay(), 7) / count


def tried(label: str, measure: Callable[[], str]) -> None:
    try:
        print(f"{label:58s} {measure()}", flush=True)
    except Exception as error:
        print(f"{label:58s} failed: {str(error)[:80]!r}", flush=True)
