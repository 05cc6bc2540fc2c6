"""Random requests of every kind, and what must be the same however they are computed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from device_support import ON_GPU
from engine_support import fake_of, prompt

from lmnb.errors import GenerationError
from lmnb.runtime.engine import Engine
from lmnb.runtime.handle import RequestHandle
from lmnb.runtime.request import Completion, Constraint, Request, TokenLogprob

STEM = "A long common beginning, which some of the prompts share. "
REGEXES = [
    "[a-z]{30}",
    "[a-f]{3}(yes, of course|yet another)[a-f]{5}",
    "(no|yes), (one|only two)",
    "only this",
    r"\d+",
    "([a-c]x-){4}",
    "[北南]京[a-z]{2}",
    "a(b|c)",
]


def random_request(rng: random.Random) -> Request:
    """Anything that one may ask for, alone or together."""
    options: dict[str, Any] = {"seed": rng.randrange(1000), "temperature": rng.choice([0.0, 1.0])}
    if rng.random() < 0.6:
        options["constraint"] = Constraint("regex", rng.choice(REGEXES))
        options["jump_forward"] = rng.choice([None, None, False])
    if rng.random() < 0.3:
        options |= {"frequency_penalty": 1.0, "repetition_penalty": 1.3}
    if rng.random() < 0.4:
        options |= {"return_logprob": True, "top_logprobs_num": rng.choice([0, 2])}
    if rng.random() < 0.2:
        options["stop"] = (rng.choice("abcdexyz"),)
    if rng.random() < 0.3:
        options |= {"ignore_eos": False, "stop_token_ids": tuple(rng.sample(range(97, 123), 3))}
        options["min_new_tokens"] = rng.randrange(4)
    text = STEM[: rng.randrange(1, len(STEM))] + str(rng.randrange(5))
    asked = prompt(text, rng.randrange(options.get("min_new_tokens", 0), 28), **options)
    if rng.random() < 0.3:
        asked = replace(asked, logprob_start=rng.randrange(len(asked.input_ids)))
    return asked


def disturbed(
    engine: Engine, rng: random.Random, *, cancels: float, failures: float
) -> list[tuple[Request, Completion]]:
    """Hand over 60 random requests to an engine with a fake model, while requests are cancelled and steps fail, with
    these probabilities for each. Those that got to their end, with what they got."""
    asked: list[tuple[Request, RequestHandle]] = []
    cancelled: set[RequestHandle] = set()
    for _ in range(60):
        request = random_request(rng)
        asked.append((request, engine.submit(request)))
        if rng.random() < cancels:
            chosen = rng.choice(asked)[1]
            chosen.cancel()
            cancelled.add(chosen)
        if rng.random() < failures:
            fake_of(engine).fail_next = RuntimeError("a broken kernel")
        if rng.random() < 0.3:
            engine.check_integrity()
    whole = []
    for request, handle in asked:
        try:
            completion = handle.result(timeout=60)
        except GenerationError:
            continue
        if handle not in cancelled:  # a cancelled one may look like one that has ended
            whole.append((request, completion))
    return whole


def told(completion: Completion) -> tuple[Any, ...]:
    """All that must be the same, but for log-probabilities."""
    return (
        completion.token_ids,
        completion.text,
        completion.finish_reason,
        completion.matched,
        completion.num_kept_tokens,
        completion.num_forced_tokens,
        completion.num_steps,
    )


def assert_same(got: list[Completion], expected: list[Completion]) -> None:
    """Log-probabilities to the last bit as well; but on a GPU, a row's sums depend on the rows beside it."""
    assert [told(completion) for completion in got] == [told(completion) for completion in expected]
    for one, other in zip(got, expected, strict=True):
        for entries, others in ((one.logprobs, other.logprobs), (one.input_logprobs, other.input_logprobs)):
            if not ON_GPU:
                assert entries == others
            assert [entry.token_id for entry in entries] == [entry.token_id for entry in others]
            assert [values(entry) for entry in entries] == [pytest.approx(values(entry), abs=1e-5) for entry in others]


def values(entry: TokenLogprob) -> list[float | None]:
    return [entry.logprob, entry.masked, *(value for _, value in entry.top)]
