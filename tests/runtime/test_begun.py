"""Requests that begin in the middle of their output: they go on as the request that had generated it would have."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from engine_support import TOKENIZER, fake_engine, prompt

from lmnb.errors import ArgumentError, GrammarError, RequestTooLongError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.request import Completion, Constraint, Request, TokenEvent

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"enum": ["Rex", "Tom"]}, "legs": {"type": "integer"}},
        "required": ["name"],
    }
)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 7},
    "penalties": {"temperature": 0.8, "seed": 3, "frequency_penalty": 1.5, "repetition_penalty": 1.2},
    "min_tokens": {"temperature": 1.0, "seed": 11, "ignore_eos": False, "min_new_tokens": 12},
    "stop": {"temperature": 1.0, "seed": 2, "stop": ("e", "\x07a", "zz")},
    "regex": {"temperature": 1.0, "seed": 5, "constraint": Constraint("regex", "(ab|cd){3,9}!")},
    "schema": {"temperature": 1.0, "seed": 5, "constraint": Constraint("json_schema", SCHEMA)},
    "schema, step by step": {
        "temperature": 1.0,
        "seed": 5,
        "constraint": Constraint("json_schema", SCHEMA),
        "jump_forward": False,
    },
}


def begun(request: Request, ids: tuple[int, ...]) -> Request:
    return replace(request, begun_ids=ids)


def same(first: Completion, second: Completion) -> None:
    for field in ("token_ids", "text", "num_kept_tokens", "finish_reason", "matched"):
        assert getattr(first, field) == getattr(second, field), field


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [{}, {"overlap": True, "prefill_chunk": 5}, {"prefix_cache": False}], ids=str)
def test_from_every_token_on_the_rest_is_the_same(kind: str, config: dict[str, Any]) -> None:
    request = prompt("Tell me of it.", 24, **KINDS[kind])
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size), **config) as engine:
        whole = engine.submit(request).result(timeout=20)
        assert len(whole.token_ids) > 1
        handles = {k: engine.submit(begun(request, whole.token_ids[:k])) for k in range(len(whole.token_ids) + 1)}
        for k, handle in handles.items():
            events = [event for event in handle if isinstance(event, TokenEvent)]
            rest = handle.result(timeout=20)
            same(rest, whole)
            assert rest.num_begun_tokens == k
            given = [event for event in events if event.origin == "given"]
            assert [token for event in given for token in event.token_ids] == list(whole.token_ids[:k])
            assert "".join(event.text for event in events) == whole.text


def test_what_was_generated_is_in_the_cache_and_is_not_computed_again() -> None:
    request = prompt("A prompt of some length.", 20)
    size = len(request.input_ids)
    with fake_engine() as engine:
        whole = engine.submit(request).result()
        for k in (1, 7, 18):
            other = next(token for token in range(97, 123) if token != whole.token_ids[k])
            branch = engine.submit(begun(request, (*whole.token_ids[:k], other))).result()
            assert branch.cached_tokens == size + k
            assert branch.token_ids[: k + 1] == (*whole.token_ids[:k], other)
            assert len(branch.token_ids) == 20
        status = engine.status()
        assert status.generated_tokens == 20 + sum(20 - k - 1 for k in (1, 7, 18))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("overlap", [False, True])
def test_what_is_being_generated_is_shared_too(overlap: bool) -> None:
    request = prompt("A prompt of some length.", 400)
    size = len(request.input_ids)
    with fake_engine(step_seconds=0.003, overlap=overlap, prefill_chunk=64) as engine:
        alone = engine.submit(request).result()
        engine.flush_cache()
        running = engine.submit(request)
        told: list[int] = []
        for event in running:
            assert isinstance(event, TokenEvent)
            told += event.token_ids
            if len(told) == 30:
                break
        other = (*told[:25], 97)
        branches = [engine.submit(begun(prompt("A prompt of some length.", 40), other)) for _ in range(3)]
        for branch in branches:
            result = branch.result()
            assert result.cached_tokens >= size + 25
            same(result, branches[0].result())
        engine.check_integrity()
        assert not running.done
        assert running.result().token_ids == alone.token_ids


def test_a_stop_or_the_limit_in_what_was_given_ends_it_there() -> None:
    request = prompt("x", 5, stop=("b",))
    a, b, c = TOKENIZER.encode("abc")
    with fake_engine() as engine:
        stopped = engine.submit(begun(request, (a, b, c))).result(timeout=30)
        assert (stopped.text, stopped.finish_reason, stopped.matched) == ("a", "stop", "b")
        cut = engine.submit(begun(request, (a,) * 7)).result(timeout=30)
        assert (cut.text, cut.finish_reason) == ("aaaaa", "length")
        end = engine.submit(begun(prompt("x", 5, ignore_eos=False), (a, *TOKENIZER.eos_ids))).result(timeout=30)
        assert (end.text, end.finish_reason) == ("a", "stop")


def test_what_the_constraint_does_not_allow_is_refused_by_name() -> None:
    request = prompt("x", 20, constraint=Constraint("regex", "(yes|no)"))
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size)) as engine:
        refused = engine.submit(begun(request, tuple(TOKENIZER.encode("yo"))))
        with pytest.raises(GrammarError, match="does not allow 'o' behind 'y'"):
            refused.result(timeout=30)
        assert engine.submit(begun(request, tuple(TOKENIZER.encode("ye")))).result(timeout=30).text == "yes"
        assert engine.submit(begun(request, tuple(TOKENIZER.encode("no")))).result(timeout=30).text == "no"


def test_what_the_constraint_is_too_large_for_is_not_the_begun_tokens_fault() -> None:
    rules = "\n".join(f'r{i}: "a{i}"' for i in range(1200))
    constraint = Constraint("ebnf", f'start: "xy" {" ".join(f"r{i}?" for i in range(1200))}\n{rules}\n')
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size)) as engine:
        handle = engine.submit(begun(prompt("x", 20, constraint=constraint), tuple(TOKENIZER.encode("xy"))))
        with pytest.raises(GrammarError, match="too large to follow"):
            handle.result(timeout=30)


def test_begun_tokens_must_be_tokens_and_must_fit() -> None:
    with fake_engine(context_tokens=64) as engine:
        with pytest.raises(ArgumentError, match="begun_ids"):
            begun(prompt("x"), ("a",))  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="token ids must lie in"):
            engine.submit(begun(prompt("x"), (99_999,)))
        with pytest.raises(RequestTooLongError, match="64"):
            engine.submit(begun(prompt("x", 100), (97,) * 70))


def test_cancelled_in_the_middle_it_keeps_what_was_given() -> None:
    with fake_engine(step_seconds=0.05) as engine:
        handle = engine.submit(begun(prompt("x", 100), (97, 98)))
        time.sleep(0.02)
        handle.cancel()
        completion = handle.result(timeout=30)
        assert completion.finish_reason == "cancelled"
        assert completion.text.startswith("ab")
