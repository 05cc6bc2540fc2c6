"""Constraints that are too large or deep, or that no text can satisfy, say so in one line."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from engine_support import TOKENIZER, fake_engine, prompt

from lmnb import check_constraint, gen
from lmnb.errors import ArgumentError, GrammarError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.request import Constraint

DEEP = "(" * 500 + "a" + ")" * 500


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "a{1000000}"),
        Constraint("regex", "[xy]a{1000000}"),
        Constraint("ebnf", 'start: "a" start'),
        Constraint("json_schema", '{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}'),
        Constraint("json_schema", '{"type":"array","items":{"$ref":"#"},"minItems":1}'),
    ],
    ids=lambda constraint: constraint.source,
)
@pytest.mark.parametrize("jump_forward", [True, False])
def test_what_never_ends_is_too_large(constraint: Constraint, jump_forward: bool) -> None:
    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    with fake_engine(grammars=grammars, jump_forward=jump_forward) as engine:
        evil = engine.submit(prompt("x", 40, constraint=constraint))
        with pytest.raises(GrammarError, match=r"too large|simplify it|no (?:value|text) that ever ends"):
            evil.result(timeout=30)
        assert engine.submit(prompt("x", 4)).result(timeout=30).finish_reason == "length"


@pytest.mark.timeout(60)
def test_long_forced_text_is_no_problem() -> None:
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size)) as engine:
        handle = engine.submit(prompt("x", 1600, constraint=Constraint("regex", "a{1500}b"), ignore_eos=False))
        assert handle.result(timeout=30).text == "a" * 1500 + "b"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"stop_regex": DEEP}, GrammarError),
        ({"json_schema": nested(2000)}, GrammarError),
        ({"json_schema": '{"items":' * 1200 + "{}" + "}" * 1200}, GrammarError),
        ({"json_schema": {"enum": {1, 2}}}, ArgumentError),
    ],
    ids=["stop_regex", "schema", "schema text", "set"],
)
def test_what_is_too_deep_is_refused_where_it_is_written(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        gen("x", **options)
    assert len(str(caught.value)) < 250


def test_a_regex_that_is_too_deep_is_refused_where_it_is_read() -> None:
    error = str(check_constraint(regex=DEEP).error)
    assert "is too large" in error
    assert len(error) < 250


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["json_schema", "regex"])
@pytest.mark.parametrize("depth", [300, 900, 1200])
def test_deep_constraints_compile_or_say_so(depth: int, kind: Literal["json_schema", "regex"]) -> None:
    opening, middle, closing = ('{"items":', "{}", "}") if kind == "json_schema" else ("(", "a", ")")
    constraint = Constraint(kind, opening * depth + middle + closing * depth)
    with pytest.raises(GrammarError, match=r"nested too deeply|too large|cannot be enforced"):
        Grammars(TOKENIZER, TOKENIZER.vocab_size).compile(constraint)
