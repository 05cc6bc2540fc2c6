"""Llama-3.1-8B's shape with random weights on one GPU, bfloat16, greedy, end tokens ignored.

Workloads (requests; prompt tokens; output tokens each), prompts being random ids drawn by a seed, and all requests
of a workload handed over at once to an engine with an empty prefix cache; time to the last token, median of the rounds:
single (1; 512; 256), batch (256; 1024, nothing shared; 256), few_shot (512; 2048 shared + 64 own; 32),
self_consistency (16 questions x 32; 512 shared + 512 per question + 4 own; 64), long_fork (64; 16384 shared + 32
own; 128). start: a new process, from its launch to the first token of a prompt of 512, Triton's cache empty (cold)
and filled (warm). hit rate: prompt tokens that were not computed, beside the most that could be reused.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_timeline import timeline
from lmnb.kernels.eight_bit import EightBitWeights
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.decoder_config import parse_config
from lmnb.runtime.dummy_weights import DummyCheckpoint
from lmnb.runtime.engine import Engine
from lmnb.runtime.llama import LlamaModel
from lmnb.runtime.request import Request, SamplingParams

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
Prompts = list[tuple[int, ...]]


class Workload(NamedTuple):
    """Prompts, output tokens of each, and how many prompt tokens an engine that forgets nothing computes."""

    prompts: Prompts
    new_tokens: int
    least_computed: int


def random_ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(1000, 120_000) for _ in range(count))


def single(rng: random.Random) -> Workload:
    return Workload([random_ids(rng, 512)], 256, 512)


def batch(rng: random.Random) -> Workload:
    return Workload([random_ids(rng, 1024) for _ in range(256)], 256, 256 * 1024)


def few_shot(rng: random.Random) -> Workload:
    stem = random_ids(rng, 2048)
    return Workload([stem + random_ids(rng, 64) for _ in range(512)], 32, 2048 + 512 * 64)


def self_consistency(rng: random.Random) -> Workload:
    stem = random_ids(rng, 512)
    questions = [stem + random_ids(rng, 512) for _ in range(16)]
    prompts = [question + random_ids(rng, 4) for question in questions for _ in range(32)]
    return Workload(prompts, 64, 512 + 16 * 512 + 512 * 4)


def long_fork(rng: random.Random) -> Workload:
    stem = random_ids(rng, 16384)
    return Workload([stem + random_ids(rng, 32) for _ in range(64)], 128, 16384 + 64 * 32)


WORKLOADS: dict[str, Callable[[random.Random], Workload]] = {
    function.__name__: function for function in (single, batch, few_shot, self_consistency, long_fork)
}
# What is switched off, and the workloads on which that is looked at (one round each).
ABLATIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no_tree_attention": ({"tree_attention": False}, ("few_shot", "self_consistency", "long_fork")),
    "no_in_batch_sharing": ({"min_shared_tokens": 1 << 30}, ("self_consistency",)),
    "no_prefix_cache": ({"prefix_cache": False, "min_shared_tokens": 1 << 30}, ("self_consistency",)),
    "no_cuda_graphs": ({"cuda_graphs": False}, ("single", "long_fork")),
    "no_overlap": ({"overlap": False}, ("single", "few_shot", "self_consistency")),
    "first_come": ({"max_bypass": 1}, ("self_consistency",)),
}


class WordTokenizer:
    """Implements `Tokenizer` for a vocabulary without files: token 17 is " w17"."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frozenset({vocab_size - 1})
        self.special_ids = self.added_ids = self.eos_ids
        self.bos_ids: tuple[int, ...] = ()
        self.chat_template: str | None = None
        self.template_variables: dict[str, str] = {}

    def encode(self, text: str, *, trusted: bool = False) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode()

    def token_bytes(self, token_id: int) -> bytes:
        return b" w%d" % token_id


def make_model(layers: int = 32, quantization: str = "none") -> LlamaModel:
    device = torch.device("cuda")
    config = parse_config({**LLAMA_8B, "num_hidden_layers": layers}, "llama-8b")
    weights = DummyCheckpoint(torch.bfloat16, device)
    eight_bit = None if quantization == "none" else EightBitWeights(quantization, torch.bfloat16, device)
    return LlamaModel("llama-8b", config, weights, torch.bfloat16, device, eight_bit=eight_bit)


def make_engine(model: LlamaModel, **config: Any) -> Engine:
    return Engine(model, WordTokenizer(model.vocab_size), EngineConfig(**config))


def run(engine: Engine, workload: Workload) -> float:
    """Seconds from the first submit to the last token."""
    sampling = SamplingParams(temperature=0, max_new_tokens=workload.new_tokens, ignore_eos=True)
    requests = [Request(input_ids=ids, sampling=sampling) for ids in workload.prompts]
    assert engine.flush_cache()
    began = time.perf_counter()
    handles = [engine.submit(request) for request in requests]
    for handle in handles:
        assert handle.result().completion_tokens == workload.new_tokens
    return time.perf_counter() - began


def figures(engine: Engine, name: str, rounds: int, *, profile: bool = True, trace: bool = False) -> dict[str, Any]:
    """One workload on one engine. A round before the first one, which captures graphs, does not count."""
    workload = WORKLOADS[name](random.Random(name))
    first = run(engine, workload)
    before = engine.status()
    taken = [run(engine, workload) for _ in range(rounds)]
    after = engine.status()
    took = statistics.median(taken)
    prompt = after.prompt_tokens - before.prompt_tokens
    steps = (after.num_steps - before.num_steps) / rounds
    result: dict[str, Any] = {
        "seconds": round(took, 4),
        "all_seconds": [round(each, 4) for each in taken],
        "first_round_seconds": round(first, 4),
        "output_tokens_per_second": round(len(workload.prompts) * workload.new_tokens / took, 1),
        "hit_rate": round((after.reused_tokens - before.reused_tokens) / prompt, 4),
        "best_hit_rate": round(1 - workload.least_computed * rounds / prompt, 4),
        "steps": steps,
        "radix_bookkeeping_share": round(
            (after.bookkeeping_seconds - before.bookkeeping_seconds) / (after.step_seconds - before.step_seconds), 5
        ),
    }
    if trace:
        result["timeline"] = timeline(engine, lambda: run(engine, workload))
    if profile:
        result["decode_step_ms"] = decode_split(engine, workload)
    print(f"  {name}: {result}", file=sys.stderr, flush=True)
    return result


def decode_split(engine: Engine, workload: Workload) -> dict[str, float]:
    """Milliseconds of the workload's largest decode step by kind of kernel, from replays of its graph in the middle
    of a run (which thereby says something else)."""
    executor: Any = engine._loop._executor
    size = executor._fit(min(len(workload.prompts), engine.limits.max_running))
    original, find = executor._decode, executor._graphs.find
    found: dict[str, float] = {}
    seen, replayed = 0, None

    def noted(*args: Any) -> Any:
        nonlocal replayed
        key, replayed = find(*args)
        return key, replayed

    def probe(rows: Any, *more: Any) -> Any:
        nonlocal seen
        result = original(rows, *more)
        seen += executor._fit(len(rows)) == size
        if seen >= 8 and not found and replayed is not None:
            found.update(batch=size, **replay_split(replayed.graph))
        return result

    executor._decode, executor._graphs.find = probe, noted
    try:
        run(engine, workload)
    finally:
        executor._decode, executor._graphs.find = original, find
    return found


def replay_split(graph: torch.cuda.CUDAGraph, count: int = 5) -> dict[str, float]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        graph.replay()
    end.record()
    end.synchronize()
    times: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            graph.replay()
        torch.cuda.synchronize()
    for event in profile.events():
        milliseconds = event.device_time_total / 1e3 / count
        names[event.name[:40]] += milliseconds
        times[kind_of(event.name)] += milliseconds
    top = sorted(names.items(), key=lambda item: -item[1])[:10]
    print(f"    {[(name, round(value, 3)) for name, value in top]}", file=sys.stderr)
    return {"replay": round(begin.elapsed_time(end) / count, 3), **{k: round(v, 3) for k, v in times.items()}}


def kind_of(kernel: str) -> str:
    """products, attention or rest, by a kernel's name."""
    if any(part in kernel for part in ("_attend_items", "_combine_parts", "_extend_tiles")):
        return "attention"
    if any(
        part in kernel.lower()
        for part in (
            "gemm",
            "matvec",
            "_matmul",
            "_sum_splits",
            "_unpack",
            "nvjet",
            "cutlass",
            "splitk",
            "gemv",
            "xmma",
        )
    ):
        return "products"
    return "rest"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything; `options.only` names workloads, `start` and `ablations` to be taken alone."""
    if not torch.cuda.is_available():
        sys.exit("the gpu suite needs a CUDA device; run `python -m benchmarks cpu` here")
    only = set(options.only or [*WORKLOADS, "start", "ablations"])
    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "triton": _version("triton")}
    if "start" in only:
        report["start"] = start_seconds()
        print(f"  start: {report['start']}", file=sys.stderr, flush=True)
    names = [name for name in WORKLOADS if name in only]
    if not names and "ablations" not in only:
        return report
    model = make_model(quantization=options.quantization)
    report["weight_bytes"] = model.weight_bytes
    engine = make_engine(model, kv_cache_dtype=options.kv_cache_dtype)
    report["pool_tokens"] = engine.limits.pool_tokens
    report["workloads"] = {name: figures(engine, name, options.rounds, trace=options.trace) for name in names}
    if "few_shot" in names:
        report["few_shot_seconds"] = subscriber(engine, max(3, options.rounds))
    engine.close()
    if "ablations" in only:
        report["ablations"] = {label: ablation(model, config, where) for label, (config, where) in ABLATIONS.items()}
    return report


def subscriber(engine: Engine, rounds: int) -> dict[str, float]:
    """Medians of few_shot's seconds with one who hears of cache events and without, in turn."""
    workload = few_shot(random.Random("few_shot"))
    taken: dict[str, list[float]] = {"without_a_subscriber": [], "with_a_subscriber": []}
    for _ in range(rounds):
        for name, times in taken.items():
            end = engine.subscribe(lambda events: None) if name == "with_a_subscriber" else lambda: None
            times.append(run(engine, workload))
            end()
    return {name: round(statistics.median(times), 4) for name, times in taken.items()}


def ablation(model: LlamaModel, config: dict[str, Any], where: tuple[str, ...]) -> dict[str, float]:
    engine = make_engine(model, **config)
    results = {}
    for name in where:
        workload = WORKLOADS[name](random.Random(name))
        if config.get("prefix_cache", True):
            run(engine, workload)
        results[name] = round(run(engine, workload), 3)
    print(f"  {config}: {results}", file=sys.stderr, flush=True)
    engine.close()
    return results


def start_seconds() -> dict[str, Any]:
    """Seconds from a new process to its first token, and what it says took how long."""
    with tempfile.TemporaryDirectory() as cache:
        return {name: _start(cache) for name in ("cold", "warm")}


def _start(cache: str) -> dict[str, Any]:
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_start"],
        env={**os.environ, "TRITON_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    moment, parts = done.stdout.split(maxsplit=1)
    return {"seconds": round(float(moment) - began, 2), "of_which": parts.strip()}


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
