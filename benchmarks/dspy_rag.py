"""A DSPy program that answers from passages, on SmolLM2-135M on this CPU: what the prefix cache is worth to it.

The workload of the SGLang paper's DSPy row, made small: each of 16 questions is asked with a passage of its own, behind
DSPy's instructions and six examples that all prompts share; 8 threads, as `dspy.Evaluate` has them; JSON adapter, so
that each answer is a constrained generation; greedy, at most 24 tokens. `cached` is the engine as it is, from an empty
cache; `uncached` forgets each prompt at its end, and shares nothing within the batch. Answers must be the same.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import lmnb
from benchmarks.harness import interleaved
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel, load_model

QUESTIONS, EXAMPLES, THREADS = 16, 6, 8
_COLOURS = ("red", "blue", "green", "white")
_ANIMALS = ("fox", "owl", "hen", "cat", "dog", "bee", "cow", "ant", "rat", "pig", "ram")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and reuse with the cache and without, and their ratio."""
    loaded = load_model(dtype=options.dtype or "auto")
    backends = {
        "cached": lmnb.Runtime(loaded),
        "uncached": _without_cache(loaded),
    }
    said: dict[str, list[str]] = {}
    measures = {name: (lambda name=name: ask_all(backends[name], said, name)) for name in backends}
    report: dict[str, Any] = dict(interleaved(options.rounds, **measures))
    for backend in backends.values():
        backend.shutdown()
    same = [one == other for one, other in zip(said["cached"], said["uncached"], strict=True)]
    report["same_answers"] = f"{sum(same)} of {len(same)}"
    report["uncached_over_cached"] = round(report["uncached"]["seconds"] / report["cached"]["seconds"], 2)
    return report


def _without_cache(loaded: LoadedModel) -> lmnb.Runtime:
    """A runtime whose engine keeps no prompt."""
    runtime = lmnb.Runtime(loaded)
    served = runtime._served
    assert served is not None
    served.engine.close()
    config = EngineConfig(prefix_cache=False, min_shared_tokens=1 << 30)
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    runtime._served = replace(served, engine=Engine(loaded.model, loaded.tokenizer, config, grammars))
    return runtime


def row(number: int) -> tuple[str, str, str]:
    """A passage, a question about it, and its answer."""
    colour, animal = _COLOURS[number % len(_COLOURS)], _ANIMALS[number % len(_ANIMALS)]
    passage = f"House {number} has a {colour} door. Its owner keeps a {animal}, and never locks the gate."
    return passage, f"Which colour has the door of house {number}?", f"The door of house {number} is {colour}."


def ask_all(backend: lmnb.Runtime, said: dict[str, list[str]], name: str) -> dict[str, float]:
    """One round over all questions."""
    import dspy

    names = ("passage", "question", "answer")
    taught = dspy.Predict("passage, question -> answer")
    taught.demos = [dict(zip(names, row(100 + number), strict=True)) for number in range(EXAMPLES)]
    rows = [dspy.Example(dict(zip(names, row(number), strict=True))) for number in range(1, QUESTIONS + 1)]
    lm = lmnb.dspy.LM(backend, temperature=0, max_tokens=24)
    backend.flush_cache()
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        began = time.perf_counter()
        answers = taught.batch(
            [one.with_inputs("passage", "question") for one in rows], num_threads=THREADS, disable_progress_bar=True
        )
        seconds = time.perf_counter() - began
    said[name] = [answer.answer for answer in answers]
    usages = [entry["usage"] for entry in lm.history]
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    reused = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    right = sum(one.answer.split()[-1].strip(".") in answer for one, answer in zip(rows, said[name], strict=True))
    return {
        "seconds": seconds,
        "questions_per_second": QUESTIONS / seconds,
        "prompt_tokens": prompts,
        "share_reused": reused / prompts,
        "right_answers": right,
    }
