"""Choosing tokens on a GPU: the kernels beside the chain of torch operators, for a vocabulary of 128,256 in bfloat16.

`python -m benchmarks.gpu_choice`: a line for each kind of request and batch size. *kernels*: the device's time, as a
CUDA graph. *step*: from the rows to the tokens on the host, all included. *torch*: the same for the chain. *bound*:
what the bytes of all passes over the logits would take at 4.3 TB/s (an H200's copy speed). The logits are drawn with
the standard deviation named (2: as a model's; 0.5: nearly flat). `python -m benchmarks.gpu_choice parts`: each kernel
by itself, for some sizes of tiles and programs, and numbers of pivots.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_kernels import DEVICE, VOCAB, graphed
from lmnb.kernels import choose_triton
from lmnb.runtime.device_batch import Staging
from lmnb.runtime.device_sampler import DeviceSampler
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.sampler import Sampler
from lmnb.runtime.sampler_row import SamplerRow

# Name, parameters, whether there is a grammar's mask, and passes over the logits.
KINDS: list[tuple[str, dict[str, Any], bool, int]] = [
    ("greedy", {"temperature": 0.0}, False, 1),
    ("greedy, mask", {"temperature": 0.0}, True, 1),
    ("temperature", {"temperature": 0.8}, False, 2),
    ("top-p 0.9", {"temperature": 0.8, "top_p": 0.9}, False, 5),
    ("top-p 0.9, top-k 50", {"temperature": 0.8, "top_p": 0.9, "top_k": 50}, False, 5),
    ("and penalties", {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "frequency_penalty": 0.5}, False, 9),
]
# Tokens of a tile, warps of a program, pivots of a pass.
PARTS = [(4096, 4, 16), (4096, 8, 16), (2048, 4, 16), (1024, 2, 16), (1024, 1, 16), (2048, 2, 8), (4096, 8, 8)]
SUPPRESSED = tuple(range(128_000, VOCAB))  # special tokens, as every program suppresses them


def rows_of(params: dict[str, Any], masked: bool, count: int) -> list[SamplerRow]:
    rng = np.random.default_rng(0)
    rows = [
        SamplerRow(SamplingParams(**params, suppress_token_ids=SUPPRESSED, max_new_tokens=999), seed=i)
        for i in range(count)
    ]
    for row in rows:
        if masked:
            row.bitmask = rng.integers(-(2**31), 2**31, VOCAB // 32).astype(np.int32)
        for token in rng.integers(0, VOCAB, 200).tolist():
            row.push(token)
    return rows


def wall(call: Callable[[], object], repeat: int) -> float:
    """Median seconds of a call that waits for the device itself."""
    call()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@torch.inference_mode()
def measure(name: str, params: dict[str, Any], masked: bool, passes: int, count: int, logits: Tensor) -> None:
    rows = rows_of(params, masked, count)
    last_tokens = torch.zeros(count, dtype=torch.int32, device=DEVICE)
    sampler, torch_sampler = DeviceSampler(VOCAB, last_tokens, Staging(torch.device(DEVICE))), Sampler(VOCAB)
    places = [*range(count)]
    mine = sampler.launch(logits, places, places, rows).read().token_ids
    theirs = torch_sampler.launch(logits, rows).read().token_ids
    choices, _ = sampler.plan(places, places, rows)
    kernels = graphed(lambda _: choose_triton.choose(logits, choices, sampler._space, last_tokens))
    step = wall(lambda: sampler.launch(logits, places, places, rows).read(), 9)
    chain = wall(lambda: torch_sampler.launch(logits, rows).read(), 3)
    bound = passes * count * VOCAB * 2 / 4.3e12
    same = sum(a == b for a, b in zip(mine, theirs, strict=True))
    print(
        f"{name:20s} {count:4d} rows: kernels {kernels * 1e6:7.1f} us (bound {bound * 1e6:6.1f}), "
        f"step {step * 1e6:8.1f} us, torch {chain * 1e6:9.1f} us, same tokens {same}/{count}",
        flush=True,
    )


class Recorder:
    """In the place of a kernel: launches it, and remembers how."""

    def __init__(self, name: str, kernel: Any, calls: list[tuple[str, Callable[[], object]]]) -> None:
        self.name, self.kernel, self.calls = name, kernel, calls

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        def launch(*inputs: Any, **options: Any) -> None:
            call = partial(self.kernel[grid], *inputs, **options)
            self.calls.append((self.name, call))
            call()

        return launch


@torch.inference_mode()
def parts(block: int, warps: int, pivots: int, count: int, params: dict[str, Any], logits: Tensor) -> None:
    rows, calls = rows_of(params, False, count), list[tuple[str, Callable[[], object]]]()
    settings = {"BLOCK": block, "WARPS": warps, "PIVOTS": pivots}
    names = ("_take_likeliest", "narrow", "collect", "_draw")
    before = {name: getattr(choose_triton, name) for name in (*settings, *names)}
    try:
        for name, value in settings.items():
            setattr(choose_triton, name, value)
        for name in names:
            setattr(choose_triton, name, Recorder(name, before[name], calls))
        last_tokens = torch.zeros(count, dtype=torch.int32, device=DEVICE)
        sampler = DeviceSampler(VOCAB, last_tokens, Staging(torch.device(DEVICE)))
        sampler.launch(logits, [*range(count)], [*range(count)], rows).read()
        times = [(name, graphed(lambda _, call=call: call()) * 1e6) for name, call in calls]
    finally:
        for name, value in before.items():
            setattr(choose_triton, name, value)
    shown = "  ".join(f"{name} {took:.1f}" for name, took in times)
    print(f"tile {block:5d} warps {warps} pivots {pivots:2d}, {count:3d} rows: {shown}", flush=True)


def compare_parts() -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    for count in (1, 256):
        logits = torch.randn(count, VOCAB, device=DEVICE, generator=generator).mul_(2).bfloat16()
        for block, warps, pivots in PARTS:
            parts(block, warps, pivots, count, KINDS[3][1], logits)


def main() -> None:
    if sys.argv[1:] == ["parts"]:
        compare_parts()
        return
    generator = torch.Generator(DEVICE).manual_seed(0)
    for deviation in (2.0, 0.5):
        print(f"-- logits with a standard deviation of {deviation}", flush=True)
        for count in (1, 64, 256, 512):
            logits = torch.randn(count, VOCAB, device=DEVICE, generator=generator).mul_(deviation).bfloat16()
            for kind in KINDS if deviation == 2.0 else KINDS[3:4]:
                measure(*kind, count, logits)


if __name__ == "__main__":
    main()
