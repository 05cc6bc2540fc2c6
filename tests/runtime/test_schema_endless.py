"""Definitions that no finite value satisfies: a value that would never end is not begun."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from engine_support import TOKENIZER, fake_engine, prompt

from lmnb.errors import GrammarError
from lmnb.language.check import check_constraint
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_schema import plan_schema
from lmnb.runtime.request import Constraint
from lmnb.runtime.schema_endless import endless


def obj(required: bool = True, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(properties)} if required else {})}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def many(items: Any, least: int = 1) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        ({"n": obj(n=ref("n"))}, {"n"}),
        ({"n": obj(False, n=ref("n"))}, set()),
        ({"n": obj(n={"anyOf": [NULL, ref("n")]})}, set()),
        ({"n": obj(n={"anyOf": [ref("n"), obj(m=ref("n"))]})}, {"n"}),
        ({"n": {**obj(n=ref("n")), "type": ["object", "null"]}}, set()),
        ({"n": many(ref("n"))}, {"n"}),
        ({"n": many(ref("n"), 0)}, set()),
        ({"n": {**many(ref("n"), 2), "prefixItems": [NULL, NULL]}}, set()),
        ({"n": {**many(NULL, 2), "prefixItems": [NULL, ref("n")]}}, {"n"}),
        ({"a": ref("b"), "b": ref("c"), "c": obj(a=ref("a"))}, {"a", "b", "c"}),
        ({"a": ref("b"), "b": ref("c"), "c": obj(a=ref("d")), "d": NULL}, set()),
        ({"a": {"allOf": [NULL, ref("b")]}, "b": many(ref("b"))}, {"a", "b"}),
        ({"a": obj(x=False), "b": {"anyOf": [ref("a"), False]}}, {"a", "b"}),
        ({"a": {"type": "object", "required": ["x"], "additionalProperties": ref("a")}}, {"a"}),
        ({"a": ref("elsewhere")}, set()),
    ],
)
def test_which_definitions_have_no_finite_value(definitions: dict[str, Any], expected: set[str]) -> None:
    assert endless(definitions) == expected


def test_a_long_row_of_definitions_takes_one_look_at_each() -> None:
    row = {f"d{i}": obj(a=ref(f"d{i + 1}")) for i in range(20_000)}
    assert endless({**row, "d20000": NULL}) == set()
    assert len(endless({**row, "d20000": ref("d0")})) == 20_001


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({**obj(False, a=ref("n")), "$defs": {"n": obj(n=ref("n"))}}, ["{}"], ['{"a":{"n":', '{"a":']),
        ({"anyOf": [NULL, ref("n")], "$defs": {"n": many(ref("n"))}}, ["null"], ["["]),
        ({**many(ref("n"), 0), "$defs": {"n": obj(n=ref("n"))}}, ["[]"], ["[{"]),
    ],
)
def test_a_value_that_would_never_end_is_not_begun(
    schema: dict[str, Any], accepted: list[str], rejected: list[str]
) -> None:
    report = check_constraint(schema, samples=[*accepted, *rejected])
    assert [sample.accepted for sample in report.samples] == [True] * len(accepted) + [False] * len(rejected)
    # The last character of what is rejected must be refused itself: more of it would not help.
    assert all("ends too early" not in str(sample) for sample in report.samples)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#/$defs/n", "$defs": {"n": obj(n=ref("n"))}}, "#/$defs/n"),
        ({**obj(a=ref("n")), "$defs": {"n": many(ref("n"))}}, "#/$defs/n"),
        (obj(a={"$ref": "#"}), "#"),
    ],
)
def test_a_schema_of_endless_values_is_refused(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(f"at {place} is satisfied by no value that ever ends")):
        plan_schema(json.dumps(schema))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("jump_forward", [True, False])
def test_a_part_that_forces_more_than_memory_holds_costs_its_own_request(jump_forward: bool) -> None:
    # Each value holds two of the next kind: 2^40 of the last. None of it must come, unless it is begun.
    row = {f"x{i}": obj(a=ref(f"x{i + 1}"), b=ref(f"x{i + 1}")) for i in range(40)}
    schema = {"anyOf": [{"const": 7}, ref("x0")], "$defs": {**row, "x40": {"const": 1}}}
    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    with fake_engine(grammars=grammars, jump_forward=jump_forward) as engine:
        ended = set()
        for seed in range(20):
            constraint = Constraint("json_schema", json.dumps(schema))
            evil = engine.submit(prompt("x", 6, seed=seed, temperature=2.0, constraint=constraint, ignore_eos=False))
            try:
                assert evil.result(timeout=30).text == "7"
                ended.add("7")
            except GrammarError as e:
                ended.add(str(e).partition(",")[0])
        assert ended == {"7", "the constraint is too large"}
        assert engine.submit(prompt("x", 4)).result(timeout=30).finish_reason == "length"
