"""`gen` and `check_constraint` judge a constraint alike, in the same words, whatever the model's vocabulary."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from small_tokenizers import small_tokenizer
from time_limits import time_to_compile

import lmnb
from lmnb import Runtime, check_constraint, gen
from lmnb.errors import GenerationError, GrammarError
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.testing import ByteTokenizer


@pytest.fixture(scope="module", autouse=True)
def _time_to_compile() -> Iterator[None]:
    with time_to_compile():
        yield


@pytest.fixture(scope="module", params=["bytes", "gpt2"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    tokenizer = ByteTokenizer() if request.param == "bytes" else small_tokenizer("gpt2")
    with Runtime(LoadedModel(FakeModel(tokenizer.vocab_size), tokenizer)) as runtime:
        yield runtime


def said_by_gen(runtime: Runtime, constraint: dict[str, Any]) -> str | None:
    @lmnb.function
    def program(s: Any) -> None:
        s += "Q: " + gen("x", max_tokens=20, temperature=1.0, seed=1, **constraint)

    try:
        program.run(backend=runtime)["x"]
    except GrammarError as error:
        return str(error)
    except GenerationError as error:
        return str(error.__cause__)
    return None


def optional_rules(count: int, rule: str) -> str:
    names = range(count)
    return f"root ::= {' '.join(f'r{i}?' for i in names)}\n" + "\n".join(rule.format(i) for i in names)


CONSTRAINTS: list[dict[str, Any]] = [
    {"ebnf": optional_rules(400, 'r{0} ::= "a{0}" r{0}?')},
    {"ebnf": optional_rules(1200, 'r{0} ::= "a{0}" r{0}?')},
    {"ebnf": optional_rules(400, 'r{0} ::= [a-z]+ "{0}" r{0}?')},
    {"ebnf": optional_rules(400, 'r{0}: "a{0}"').replace("root ::=", "start:")},
    {"ebnf": "start: " + " | ".join(f'"w{i}"' for i in range(10_000)) + "\n"},
    {"ebnf": 'root ::= "a" x root | "b"\nx ::= x\n'},
    {"ebnf": 'root ::= ("x" | "xy") "yz" | "(" root ")"\n'},
    {"ebnf": "start: start\n"},
    {"regex": "(a|b)*c{3,400}"},
    {"regex": "a(?=b)"},
    {"regex": r"[^\W\d_]{2000}x"},
    {"json_schema": False},
    {"json_schema": {"type": "number", "multipleOf": 1e-20}},
    {"json_schema": {"type": "integer", "multipleOf": 1234567}},
    {"json_schema": '{"type": "string", "type": "null"}'},
    {"json_schema": '{"minimum": 1e999}'},
    {"json_schema": {"type": "array", "minItems": 3, "maxItems": 1, "items": {}}, "grammar_backend": "xgrammar"},
    {"json_schema": {"enum": ["a", "b"]}, "grammar_backend": "xgrammar"},
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: str(constraint)[:60])
def test_both_say_the_same(runtime: Runtime, constraint: dict[str, Any]) -> None:
    assert said_by_gen(runtime, constraint) == check_constraint(**constraint).error


def test_both_say_the_same_of_a_limit_that_is_met_later(runtime: Runtime) -> None:
    rules = "\n".join(f'r{i}: "a{i}"' for i in range(1200))
    for jump_forward in (True, False):
        grammar = f'start: "xy" {" ".join(f"r{i}?" for i in range(1200))}\n{rules}\n# {jump_forward}'
        report = check_constraint(ebnf=grammar, samples=["xya0"])
        assert report.error is None
        said = said_by_gen(runtime, {"ebnf": grammar, "jump_forward": jump_forward})
        assert said == report.samples[0].error
        assert "is too large to follow" in str(said)


def random_constraint(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.3:
        parts = ["a", "b", "é", "[a-c]", "(a|b)*", "{2,9}", "?", "(", ")", "|", r"\d", "(?=a)", "$", r"\w+"]
        return {"regex": "".join(rng.choices(parts, k=rng.randrange(1, 7)))}
    if rng.random() < 0.5:
        names = ["root", "x", "y"]
        parts = [*names, '"a"', '"ab"', "[a-z]+", '("b" | x)?', "(y y)*", "|"]
        return {
            "ebnf": "\n".join(f"{name} ::= {' '.join(rng.choices(parts, k=rng.randrange(1, 6)))}" for name in names)
        }
    keywords: dict[str, Any] = {
        "type": rng.choice(["string", "integer", "array", "object"]),
        "minimum": rng.randrange(-3, 3),
        "maximum": rng.randrange(-3, 3),
        "minLength": rng.randrange(3),
        "maxLength": rng.randrange(3),
        "items": rng.choice([True, False, {"type": "null"}]),
        "minItems": rng.randrange(3),
        "enum": rng.sample([1, "a", None, [], {"b": 1}], rng.randrange(3)),
        "not": rng.choice([{}, {"type": "string"}, {"pattern": "a"}]),
        "required": ["b"],
        "multipleOf": rng.choice([2, 0.5, 1e-15]),
    }
    return {"json_schema": json.dumps({key: keywords[key] for key in rng.sample([*keywords], rng.randrange(1, 4))})}


def test_both_say_the_same_of_anything(runtime: Runtime) -> None:
    rng = random.Random(5)
    refused = 0
    for _ in range(150):
        constraint = random_constraint(rng)
        said = check_constraint(**constraint).error
        assert said_by_gen(runtime, constraint) == said, constraint
        refused += said is not None
    assert 20 < refused < 130
