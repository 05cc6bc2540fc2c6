"""What launching a step ahead of the last one's tokens is worth on a GPU, where the next choice needs those tokens.

64 prompts of 64 tokens, 128 tokens each, greedy: `plain`; `mask`, a regex that never ends; `penalties`; `logprobs`, of
the token and two others; `all` of these. And 24 character sheets (see `structured`), whose forced text is added at once
(`sheets_jump`) or takes a step a token (`sheets_step`). Each `ahead` and, as a CPU does it, `in_turn`; milliseconds a
step, and of one run where the device's time went. Llama-3.1-8B's shape with made-up weights, from the folder that
`--dummy` names (see `structured`).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from typing import Any

from benchmarks.gpu_timeline import timeline
from benchmarks.sheets import CONSTRAINT, MOST_TOKENS, NAMES, requests
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.request import Constraint, Request, SamplingParams

_TOKENS = 128
_MASK: dict[str, Any] = {"constraint": Constraint("regex", "[a-z ]+"), "min_new_tokens": _TOKENS, "ignore_eos": False}
_PENALTIES: dict[str, Any] = {"repetition_penalty": 1.2, "frequency_penalty": 0.2}
_LOGPROBS: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": _MASK,
    "penalties": _PENALTIES,
    "logprobs": _LOGPROBS,
    "all": {**_MASK, **_PENALTIES, **_LOGPROBS},
}


def batches(loaded: LoadedModel) -> dict[str, list[Request]]:
    rng = random.Random(5)
    prompts = [tuple(rng.randrange(1000, 40_000) for _ in range(64)) for _ in range(64)]
    made = {}
    for name, options in KINDS.items():
        sampling = SamplingParams(**{"temperature": 0.0, "max_new_tokens": _TOKENS, "ignore_eos": True, **options})
        made[name] = [Request(input_ids=ids, sampling=sampling) for ids in prompts]
    made["sheets_jump"] = made["sheets_step"] = requests(loaded, len(NAMES), CONSTRAINT, MOST_TOKENS)
    return made


def run(engine: Engine, batch: list[Request]) -> float:
    """Seconds from the first submit to the last token, from an empty cache."""
    assert engine.flush_cache()
    began = time.perf_counter()
    handles = [engine.submit(request) for request in batch]
    for handle in handles:
        handle.result()
    return time.perf_counter() - began


def figures(engine: Engine, batch: list[Request], rounds: int) -> dict[str, Any]:
    """A round before the first one, which captures graphs, does not count."""
    run(engine, batch)
    before = engine.status()
    seconds = [run(engine, batch) for _ in range(rounds)]
    after = engine.status()
    masks = after.mask_seconds - before.mask_seconds
    where = timeline(engine, lambda: run(engine, batch))
    return {
        "seconds": round(statistics.median(seconds), 4),
        "milliseconds_per_step": round(1e3 * statistics.median(seconds) / where["steps"], 3),
        "mask_seconds": round(masks / rounds, 4),
        "masks_hidden": round(1 - (after.mask_wait_seconds - before.mask_wait_seconds) / masks, 3) if masks else None,
        "timeline": where,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All kinds, or those that `options.only` names, ahead and in turn."""
    if options.dummy is None:
        sys.exit("the ahead suite needs --dummy: write such a folder with `structured --write-dummy DIR`")
    loaded = load_model(options.dummy, load_format="dummy")
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    report: dict[str, Any] = {}
    for name, batch in batches(loaded).items():
        if options.only and name not in options.only:
            continue
        report[name] = {}
        for order, overlap in (("ahead", True), ("in_turn", False)):
            config = EngineConfig(pool_tokens=32768, overlap=overlap, jump_forward=name != "sheets_step")
            engine = Engine(loaded.model, loaded.tokenizer, config, grammars)
            report[name][order] = figures(engine, batch, options.rounds)
            engine.close()
        print(f"  {name}: {report[name]}", file=sys.stderr, flush=True)
    return report
