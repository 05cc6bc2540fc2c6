"""A step that is launched before the last one's tokens are known changes nothing: whatever is asked for, whatever else
runs, and whatever ends, fails or is forced meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from engine_support import TOKENIZER, fake_engine, fake_of, prompt
from random_requests import assert_same, disturbed, random_request

from lmnb.runtime import mask_worker
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.request import Completion, Constraint, Event, Request, TokenEvent

GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, cache_size=256)
CONFIGS: list[dict[str, Any]] = [
    {},
    {"prefill_chunk": 3},
    {"pool_tokens": 150, "max_running": 6, "prefill_chunk": 16},
    {"prefix_cache": False, "max_running": 3},
    {"jump_forward": False},
    {"plain_masks": True, "prefill_chunk": 7},
]


def answers(requests: list[Request], **config: Any) -> list[Completion]:
    with fake_engine(grammars=GRAMMARS, **config) as engine:
        handles = [engine.submit(request) for request in requests]
        return [handle.result(timeout=60) for handle in handles]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_it_changes_no_answer(config: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    requests = [random_request(rng) for _ in range(30)]
    assert_same(answers(requests, overlap=True, **config), answers(requests, overlap=False, **config))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(4))
def test_requests_that_end_in_between_leave_every_slot_accounted_for(seed: int) -> None:
    """Cancelled, failed with a step, or failed alone; what is left says what it says alone."""
    config: dict[str, Any] = {"pool_tokens": 260, "prefill_chunk": 24, "max_running": 6, "overlap": True}
    with fake_engine(grammars=GRAMMARS, **config) as engine:
        whole = disturbed(engine, random.Random(seed), cancels=0.25, failures=0.1)
    assert len(whole) > 10
    assert_same([got for _, got in whole], answers([request for request, _ in whole], overlap=False))


def trace(engine: Engine, request: Request) -> str:
    """F for each forward pass, and t for each token that was told of."""
    seen: list[str] = []
    model = fake_of(engine)
    forward = model.forward

    def counted(*args: Any) -> Any:
        seen.append("F")
        return forward(*args)

    def heard(event: Event) -> None:
        seen.append("t" if isinstance(event, TokenEvent) else "")

    model.forward = counted  # type: ignore[method-assign]
    engine.submit(request, heard).result(timeout=20)
    return "".join(seen)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"constraint": Constraint("regex", "[a-z]{9}")},
        {"frequency_penalty": 1.0},
        {"return_logprob": True, "top_logprobs_num": 2},
    ],
    ids=["plain", "grammar", "penalties", "logprobs"],
)
def test_a_step_is_launched_before_the_last_one_is_told_of(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_worker, "_PATIENCE_SECONDS", 20)
    with fake_engine(grammars=GRAMMARS, overlap=True) as engine:
        assert trace(engine, prompt("x", 6, **options)) == "FFtFtFtFtFtt"
    with fake_engine(grammars=GRAMMARS, overlap=False) as engine:
        assert trace(engine, prompt("x", 6, **options)) == "Ft" * 6


def test_nothing_is_computed_twice_where_text_is_forced() -> None:
    """The token before forced ones has been computed when they become known."""
    asked = prompt("Q: ", 40, constraint=Constraint("regex", "(yes|no), of course(!|[?])[a-c]{5} and so on[a-c]{2}"))
    for scored in (False, True):
        request = replace(asked, sampling=replace(asked.sampling, return_logprob=scored))
        with fake_engine(grammars=GRAMMARS, overlap=True) as engine:
            completion = engine.submit(request).result(timeout=20)
            assert completion.num_forced_tokens > 15
            assert fake_of(engine).num_tokens <= len(request.input_ids) + len(completion.token_ids)


@pytest.mark.parametrize("num_cores", [1, 16])
def test_masks_are_made_once_for_each_choice(num_cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_worker.os, "cpu_count", lambda: num_cores)
    monkeypatch.setattr(mask_worker, "_PLACE_SECONDS", 20)
    with fake_engine(grammars=GRAMMARS, overlap=True, plain_masks=True) as engine:
        requests = [prompt(f"{i}", 12, constraint=Constraint("regex", "[a-z]{4,12}")) for i in range(5)]
        done = [handle.result(timeout=20) for handle in [engine.submit(request) for request in requests]]
        assert engine.status().num_masks == sum(completion.num_steps for completion in done)
        assert engine.status().mask_seconds > 0
        assert len(engine._loop._masks._threads) == max(1, num_cores // 4)
    assert [completion.text for completion in done] == [
        completion.text for completion in answers(requests, overlap=False, plain_masks=True)
    ]
