"""Constraints whose library comes to its limits: that is their text's own doing, never that of others' before it."""

from __future__ import annotations

import json
import random
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from lmnb import check_constraint
from lmnb.runtime.decimal_bounds import few_multiples
from lmnb.runtime.engine import Engine
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.recovery import accepts, fills
from lmnb.runtime.request import Constraint, Request, SamplingParams
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
END = min(TOKENIZER.eos_ids)
# Each next letter is a state that nothing has met before, so that the texts that come by wear it out.
GROWS = Constraint("regex", r"(?:a|b)*a(?:a|b){18}")


def grammars() -> Grammars:
    return Grammars(TOKENIZER, TOKENIZER.vocab_size)


def engine_of(made: Grammars) -> Engine:
    return Engine(FakeModel(TOKENIZER.vocab_size), TOKENIZER, grammars=made)


def letters(seed: int, length: int = 3000) -> bytes:
    rng = random.Random(seed)
    return bytes(rng.choice(b"ab") for _ in range(length)) + b"a" + b"b" * 18


def wear_out(made: Grammars) -> None:
    """Have it follow text until it takes nothing more."""
    for seed in range(100, 1000):
        matcher = made.compile(GROWS)
        if not all(map(matcher.accept, letters(seed))):
            assert matcher.is_beyond_limits()
            return
    raise AssertionError("it never comes to its limits")


def test_the_next_one_is_compiled_anew() -> None:
    made = grammars()
    wear_out(made)
    assert made.known(GROWS) is None
    matcher = made.compile(GROWS)
    assert all(map(matcher.accept, letters(0)))
    assert matcher.accept(END)
    assert made.known(GROWS) is not None


@pytest.mark.parametrize("half", [b"", letters(1)[:40]])
def test_one_that_goes_on_meanwhile_begins_anew(half: bytes) -> None:
    made = grammars()
    matcher = made.compile(GROWS)
    alone = grammars().compile(GROWS)
    assert all(map(matcher.accept, half))
    assert all(map(alone.accept, half))
    fork = matcher.fork()
    wear_out(made)
    mask, expected = np.zeros((2, 9), dtype=np.int32)
    assert not matcher.fill(mask)
    assert fills(matcher, mask)
    assert alone.fill(expected)
    assert (mask == expected).all()
    assert all(accepts(fork, byte) for byte in letters(1)[len(half) :])
    assert accepts(fork, END)


def test_what_is_not_allowed_is_told_from_what_cannot_be_followed() -> None:
    made = grammars()
    matcher = made.compile(GROWS)
    wear_out(made)
    assert not accepts(matcher, ord("c"))
    assert not matcher.is_beyond_limits()
    assert accepts(matcher, ord("b"))
    assert not accepts(matcher, END)


def test_tokens_that_were_chosen_are_followed_later() -> None:
    made = grammars()
    matcher = made.compile(GROWS)
    wear_out(made)
    assert matcher.follow(b"ab")
    assert matcher.is_beyond_limits()
    assert not matcher.is_done()
    assert matcher.forced() == b""
    matcher.rollback(1)
    assert matcher.follow(b"a")
    fork = matcher.fork()
    for each in (matcher, fork):
        assert accepts(each, ord("a"))
        assert not each.is_beyond_limits()
        each.rollback(3)
        assert all(map(each.accept, letters(2)))


def test_tokens_that_nothing_allowed_are_told_when_it_has_recovered() -> None:
    made = grammars()
    matcher = made.compile(GROWS)
    wear_out(made)
    assert matcher.follow(b"ac")
    assert not accepts(matcher, ord("a"))
    assert matcher.is_beyond_limits()


def test_requests_do_not_depend_on_those_before_them() -> None:
    """Some texts wear the grammar out in the middle of others' generation."""
    sampling = {"constraint": GROWS, "max_new_tokens": 400}

    def texts(engine: Engine, seeds: list[int]) -> list[str]:
        asked = [
            engine.submit(Request(input_ids=(seed % 7 + 97,), sampling=SamplingParams(seed=seed, **sampling)))
            for seed in seeds
        ]
        return [handle.result().text for handle in asked]

    with closing(engine_of(grammars())) as engine:
        first = texts(engine, list(range(12)))
    made = grammars()
    with closing(engine_of(made)) as engine:
        wear_out(made)
        assert texts(engine, list(range(12))) == first
        for seed in range(12, 100, 11):
            texts(engine, list(range(seed, seed + 11)))
        assert texts(engine, list(range(12))[::-1]) == first[::-1]


def test_samples_do_not_depend_on_those_before_them() -> None:
    samples = [letters(seed).decode() for seed in range(40)]
    report = check_constraint("x" + GROWS.source, ["x" + sample for sample in samples])
    assert all(report.accepted)
    assert report.forced == "x"
    assert all(check_constraint(GROWS.source, samples).accepted)
    again = check_constraint(GROWS.source, ["a" * 30, "c", "a"])
    assert again.accepted == [True, False, False]
    assert [sample.error for sample in again.samples] == [None, None, None]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"multipleOf": 50_000, "minimum": 0, "maximum": 200_000}, [0, 50_000, 100_000, 150_000, 200_000]),
        ({"multipleOf": 7, "exclusiveMinimum": 0, "exclusiveMaximum": 28}, [7, 14, 21]),
        ({"multipleOf": 2.5, "minimum": -11, "maximum": 11}, [-10, -5, 0, 5, 10]),
        ({"multipleOf": 0.3, "minimum": -1.5, "maximum": 4}, [0, 3]),
        ({"multipleOf": 3, "minimum": 0.5, "exclusiveMinimum": 3, "maximum": 9}, [6, 9]),
        ({"multipleOf": 7, "minimum": 0}, []),
        ({"multipleOf": 7, "minimum": 0, "maximum": 10**6}, []),
        ({"multipleOf": 7, "minimum": 0, "maximum": 30, "not": {"const": 7}}, []),
    ],
)
def test_few_multiples_are_listed(schema: dict[str, Any], values: list[int]) -> None:
    assert few_multiples({"type": "integer", **schema}) == values
    if values:
        report = check_constraint({"type": "integer", **schema}, [*values, *(value + 1 for value in values)])
        assert report.accepted == [*([True] * len(values)), *([False] * len(values))]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 86_400, "minimum": 0, "maximum": 31_536_000},
        {"type": "integer", "multipleOf": 50_000, "minimum": 1, "maximum": 10**7},
        {"type": "integer", "multipleOf": 9991, "minimum": 1, "maximum": 9_990_000},
        {"type": "integer", "multipleOf": 99_991},
    ],
)
def test_multiples_of_large_numbers_can_be_generated(schema: dict[str, Any]) -> None:
    step = schema["multipleOf"]
    assert all(check_constraint(schema, [step, 2 * step, 17 * step]).accepted)
    constraint = Constraint("json_schema", json.dumps(schema))
    with closing(engine_of(grammars())) as engine:
        for seed in range(8):
            sampling = SamplingParams(constraint=constraint, max_new_tokens=20, seed=seed)
            found = engine.submit(Request(input_ids=(97,), sampling=sampling)).result()
            if found.finish_reason == "stop":
                assert int(found.text) % step == 0
