"""What strict mode costs: the figures of the cpu suite, default engine and `deterministic=True`, side by side.

On a GPU: two workloads at Llama-3.1-8B's shape (see `benchmarks/gpu.py`), `single` and `branches` (64 requests; 512
shared + 64 own prompt tokens; 64), and how many of 48 requests get other tokens in a batch than alone: `margins` are
the differences of the two likeliest tokens' log-probabilities, at all tokens and where two runs first differ.
"""

from __future__ import annotations

import argparse
import random
import statistics
from typing import Any

import torch

from benchmarks import gpu
from benchmarks.cpu import Lmnb, figures
from benchmarks.harness import interleaved
from lmnb.runtime.engine import Engine
from lmnb.runtime.request import Completion, Request, SamplingParams

_POOL_TOKENS = 100_000


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both engines, by dtype; `cost` above 1: strict mode takes so many times as long."""
    if torch.cuda.is_available():
        return {"bfloat16": on_gpu(options.rounds)}
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


def on_gpu(rounds: int) -> dict[str, Any]:
    """Both engines on the GPU."""
    model = gpu.make_model()
    engines = {
        name: gpu.make_engine(model, pool_tokens=_POOL_TOKENS, deterministic=strict)
        for name, strict in {"default": False, "strict": True}.items()
    }
    workloads = {"single": gpu.single(random.Random("single")), "branches": _branches(random.Random("branches"))}

    def seconds(engine: Engine) -> dict[str, float]:
        return {f"{name}_seconds": gpu.run(engine, workload) for name, workload in workloads.items()}

    result: dict[str, Any] = interleaved(
        rounds, default=lambda: seconds(engines["default"]), strict=lambda: seconds(engines["strict"])
    )
    cost = {name: round(result["strict"][name] / value, 2) for name, value in result["default"].items()}
    differences = {name: alone_and_together(engine) for name, engine in engines.items()}
    for engine in engines.values():
        engine.close()
    return {**result, "cost": cost, "alone_and_together": differences}


def _branches(rng: random.Random, count: int = 64) -> gpu.Workload:
    stem = gpu.random_ids(rng, 512)
    return gpu.Workload([stem + gpu.random_ids(rng, 64) for _ in range(count)], 64, 512 + 64 * count)


def alone_and_together(engine: Engine) -> dict[str, Any]:
    """Requests whose tokens differ between a run alone and one in a batch, and by what margin their first other
    token won."""
    prompts = _branches(random.Random("margins"), 48).prompts
    sampling = SamplingParams(
        temperature=0, max_new_tokens=64, ignore_eos=True, return_logprob=True, top_logprobs_num=2
    )
    asked = [Request(input_ids=ids, sampling=sampling) for ids in prompts]
    engine.flush_cache()
    alone = [engine.submit(each).result() for each in asked]
    engine.flush_cache()
    together = [handle.result() for handle in [engine.submit(each) for each in asked]]
    parted = [
        margin(
            one, next(i for i, pair in enumerate(zip(one.token_ids, two.token_ids, strict=True)) if len({*pair}) > 1)
        )
        for one, two in zip(alone, together, strict=True)
        if one.token_ids != two.token_ids
    ]
    everywhere = [margin(each, i) for each in alone for i in range(len(each.token_ids))]
    return {
        "requests": len(asked),
        "differ": len(parted),
        "median_margin": round(statistics.median(everywhere), 4),
        "margins_where_they_part": sorted(round(each, 4) for each in parted),
        "share_of_tokens_with_a_margin_as_small": round(
            sum(each <= max(parted, default=0.0) for each in everywhere) / len(everywhere), 4
        ),
    }


def margin(completion: Completion, step: int) -> float:
    """By how much the likeliest token's log-probability exceeds the next one's."""
    (_, best), (_, next_best) = completion.logprobs[step].top[:2]
    return best - next_best
