"""Joins of caches beside exact ones: questions about several documents, on the embedded model.

Sets of eight short documents, four questions to each set, the documents in another order for each question. `exact`:
one prompt, its documents in that order. `side_by_side`: each document in a branch of its own, joined by caches, all at
the same positions. `spaced`: the same, each branch moved (`position_ids_offset`) to where its document stands in the
exact prompt. Before each set the prefix cache is emptied.
computed: prompt tokens computed for a question. first_token_seconds: from nothing asked to the answer's first token.
Against exact, over the tokens of exact's answer, which all three are given: kl, Kullback-Leibler divergence of the
next token's distribution in nats (mean, median); top_1, share of tokens whose likeliest is the same; equal_answers,
share of greedy answers that are the same text; right, share of answers that have the word asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor

from lmnb.backends.base import CancelToken, Owner
from lmnb.backends.local import Runtime
from lmnb.backends.local_context import LocalContext
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.request import SamplingParams

TOWNS = ["Arlen", "Brosk", "Cardia", "Dunmore", "Elvas", "Farrow", "Galway", "Hestia"]
ASKED = {
    "Who founded the library of {}?": ["Ada", "Boris", "Clara", "David", "Elena", "Frank", "Greta", "Hugo"],
    "What is the market of {} known for?": ["honey", "salt", "carpets", "lamps", "cheese", "pears", "knives", "roses"],
    "What colour is the bridge of {}?": ["red", "green", "blue", "white", "yellow", "black", "grey", "orange"],
    "Which animal is on the flag of {}?": [
        "a bear",
        "a fox",
        "a wolf",
        "a horse",
        "an owl",
        "a goat",
        "a swan",
        "a bee",
    ],
}
DOCUMENT = (
    "{town} is a town of {people} people on the river. The library of {town} was founded by {0}. There is a market on "
    "Saturdays; the market of {town} is known for {1}. The bridge of {town} is {2}; it was built by the town itself "
    "after the flood. The flag of {town} shows {3}.\n"
)
INTRO = "Read these documents about towns.\n\n"
MODES = ("exact", "side_by_side", "spaced")
OWNER = Owner(run="benchmark", program="join")
_ANSWER_TOKENS, _SETS = 16, 3


class Recorded:
    """A model whose last logits can be looked at."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.last = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, *arguments: Any) -> Tensor:
        logits: Tensor = self._model.forward(*arguments)
        self.last = logits.float()
        return logits


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    loaded = load_model(dtype=options.dtype or "auto")
    model = Recorded(loaded.model)
    # All that is scored fits one step, so that its logits are the last ones.
    with Runtime(LoadedModel(model, loaded.tokenizer), prefill_chunk=4096, kv_cache=16384) as runtime:
        return asyncio.run(compare(runtime, model, options.rounds))


async def compare(runtime: Runtime, model: Recorded, rounds: int) -> dict[str, Any]:
    """The three ways, question by question."""
    taken: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    documents: list[int] = []
    for number in range(_SETS * rounds):
        rng = random.Random(number)
        words = {question: rng.sample(answers, len(answers)) for question, answers in ASKED.items()}
        texts = [
            DOCUMENT.format(*(each[i] for each in words.values()), town=town, people=rng.randrange(900, 9000))
            for i, town in enumerate(TOWNS)
        ]
        questions = [
            (question, rng.randrange(len(TOWNS)), rng.sample(range(len(TOWNS)), len(TOWNS))) for question in words
        ]
        answers: list[tuple[str, Tensor]] = []
        for mode in MODES:
            assert runtime.flush_cache()
            for index, (question, town, order) in enumerate(questions):
                before = runtime.status()
                began = time.perf_counter()
                context = await ask(runtime, mode, [texts[i] for i in order], question.format(TOWNS[town]))
                probe = context.fork()
                text, first = await answer(context)
                now = runtime.status()
                computed = now.prompt_tokens - now.reused_tokens - before.prompt_tokens + before.reused_tokens
                if mode == "exact":
                    documents.append(len(probe.token_ids))
                    answers.append((text, await distributions(model, probe, text)))
                expected, exactly = answers[index]
                found = exactly if mode == "exact" else await distributions(model, probe, expected)
                figures = {
                    "computed": computed,
                    "first_token_seconds": first - began,
                    "equal_answers": text == expected,
                    "right": words[question][town].split()[-1] in text,
                    **agreement(exactly, found),
                }
                taken[mode].append(figures)
        print(f"  set {number + 1}", file=sys.stderr)
    report: dict[str, Any] = {mode: summary(figures) for mode, figures in taken.items()}
    return {"questions": len(taken["exact"]), "prompt_tokens": round(statistics.mean(documents)), **report}


async def ask(runtime: Runtime, mode: str, texts: list[str], question: str) -> LocalContext:
    """A prompt that is ready to be answered."""
    context = runtime.new_context()
    context.begin_role("user")
    context.append(INTRO)
    if mode == "exact":
        context.append("".join(texts))
    else:
        moved = 0
        branches = []
        for text in texts:
            branch = context.fork_moved(moved) if moved else context.fork()
            branch.append(text)
            branches.append(branch)
            moved += (len(branch.token_ids) - len(context.token_ids)) if mode == "spaced" else 0
        await context.concatenate(branches, owner=OWNER, cancel=CancelToken())
    context.append("\nQuestion: " + question)
    context.end_role()
    context.begin_role("assistant")
    return context


async def answer(context: LocalContext) -> tuple[str, float]:
    """The greedy answer, and when its first token came."""
    times: list[float] = []
    generation = await context.generate(
        SamplingParams(temperature=0, max_new_tokens=_ANSWER_TOKENS),
        owner=OWNER,
        cancel=CancelToken(),
        on_delta=lambda delta: times.append(time.perf_counter()),
    )
    return generation.text, times[0] if times else time.perf_counter()


async def distributions(model: Recorded, context: LocalContext, text: str) -> Tensor:
    """Log-probabilities [tokens of `text`, vocabulary] behind the context."""
    scores = await context.score([text or " "], unconditional=False, owner=OWNER, cancel=CancelToken())
    count = len(scores.choices[0].logprobs)
    return model.last[-count:].log_softmax(-1)


def agreement(exact: Tensor, other: Tensor) -> dict[str, float]:
    count = min(len(exact), len(other))
    exact, other = exact[-count:], other[-count:]
    kl = (exact.exp() * (exact - other)).sum(-1)
    return {
        "kl_mean": float(kl.mean()),
        "kl_median": float(kl.median()),
        "top_1": float((exact.argmax(-1) == other.argmax(-1)).float().mean()),
    }


def summary(figures: list[dict[str, float]]) -> dict[str, float]:
    means = {name: statistics.mean(float(each[name]) for each in figures) for name in figures[0]}
    means["first_token_seconds"] = statistics.median(each["first_token_seconds"] for each in figures)
    return {name: round(value, 4) for name, value in means.items()}
