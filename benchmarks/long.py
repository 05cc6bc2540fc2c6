"""Decoding behind long prompts on this CPU: one request of SmolLM2-135M, beside llama.cpp if there is one.

Of each context: that many prompt tokens, random ids drawn by a seed, nothing cached; then 33 greedy tokens, end tokens
ignored. decode: tokens a second behind the first one, on the clock, and processor seconds a token. prefill: prompt
tokens a second, to the first token.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from benchmarks.cpu import LlamaCpp, Lmnb, prompts
from benchmarks.harness import interleaved, ratio

CONTEXTS = (512, 2048, 8000)
_NEW = 33


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, by context, with ratios to the peer."""
    ours = Lmnb(options.dtype or "auto", pool_tokens=2 * CONTEXTS[-1])
    llama = LlamaCpp(options.llama_python) if options.llama_python else None
    report: dict[str, Any] = {"weights": ours.weights}
    for context in CONTEXTS:
        measures = {"lmnb": partial(decode, ours, context)}
        if llama is not None:
            measures["llama_cpp"] = partial(llama.decode, context, _NEW)
        report[str(context)] = figures = interleaved(options.rounds, **measures)
        if llama is not None:
            report[str(context)]["ratio"] = {name: ratio(figures, name, "llama_cpp") for name in figures["llama_cpp"]}
    ours.engine.close()
    if llama is not None:
        llama.close()
    return report


def decode(ours: Lmnb, context: int) -> dict[str, float]:
    """One round of lmnb's figures."""
    assert ours.engine.flush_cache()
    prompt = prompts(1, context, seed=context)
    completion = ours.run(prompt, _NEW)[0]
    assert completion.first_token_seconds is not None
    # Again with the prompt cached, for the processor time of its tokens alone.
    seconds = []
    for new_tokens in (1, _NEW):
        began = time.process_time()
        ours.run(prompt, new_tokens)
        seconds.append(time.process_time() - began)
    return {
        "decode_tokens_per_second": (_NEW - 1) / (completion.total_seconds - completion.first_token_seconds),
        "prefill_tokens_per_second": context / completion.first_token_seconds,
        "processor_milliseconds_per_token": 1e3 * (seconds[1] - seconds[0]) / (_NEW - 1),
    }
