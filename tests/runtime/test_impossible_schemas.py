"""Schemas that no value fits, and numbers in them that no grammar counts to: one line says what, where, and what to
do."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from lmnb import check_constraint

EMPTY: list[tuple[Any, str]] = [
    ({"type": "integer", "minimum": 5, "maximum": 3}, "#"),
    ({"type": "number", "exclusiveMinimum": 5, "maximum": 5}, "#"),
    ({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6}, "#"),
    ({"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5}, "#"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, "#"),
    ({"type": "array", "items": {}, "minItems": 5, "maxItems": 3}, "#"),
    ({"type": "array", "items": False, "minItems": 1}, "#"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "#"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "#"),
    ({"not": {}}, "#"),
    ({"anyOf": [False]}, "#"),
    ({"if": True, "then": False}, "#"),
    ({"oneOf": [True, True]}, "#"),
    ({"oneOf": [{"const": 1}, {"const": 1}]}, "#"),
    ({"const": 1, "minimum": 2}, "#"),
    ({"enum": [1], "type": "string"}, "#"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "#"),
    (
        {"type": "object", "properties": {"x": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["x"]},
        "#/properties/x",
    ),
]


@pytest.mark.parametrize(("schema", "place"), EMPTY, ids=str)
def test_a_schema_that_no_value_fits_is_refused_by_place(schema: Any, place: str) -> None:
    error = check_constraint(json_schema=schema).error
    assert error is not None
    assert error.startswith(f"JSON schema at {place} is satisfied by no value: ")
    assert error.endswith("; let one be possible there")
    assert "\n" not in error


def test_what_a_range_lacks_is_told_by_its_own_numbers() -> None:
    error = check_constraint({"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5}).error
    assert error is not None
    assert "a multiple of 5 is not within its bounds" in error


@pytest.mark.parametrize("schema", [False, "false"])
def test_false_is_told_from_what_is_no_schema(schema: Any) -> None:
    assert "allows no value; give an object" in str(check_constraint(json_schema=schema))


@pytest.mark.parametrize(
    "multiple",
    [
        1e-20,
        1e-11,
        123.456,
        123456789.5,
        1e20,
        10**400,
        1234567,
        12345678,
        100003,
        math.inf,
        math.nan,
        0,
        -1,
        0.1 + 0.2,
    ],
)
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_multiples_that_cannot_be_counted_are_refused_at_once(multiple: float, kind: str) -> None:
    """The grammar of the multiples of a number has a state for each remainder."""
    error = check_constraint({"type": kind, "multipleOf": multiple}).error
    assert error is not None
    is_number = math.isfinite(multiple) if isinstance(multiple, float) else True
    assert ("'multipleOf' at #" in error) == is_number
    if is_number and multiple > 0:
        assert error.endswith("too many digits; give a rounder one, or leave it out and check the value afterwards")


@pytest.mark.parametrize("multiple", [1e-10, 0.001, 0.1, 1.25, 7, 65536, 10**8, 12_300_000])
def test_other_multiples_are_enforced(multiple: float) -> None:
    samples = [json.dumps(multiple * 3) if multiple >= 1 else "0", "0"]
    report = check_constraint({"type": "number", "multipleOf": multiple}, samples)
    assert report.accepted == [True, True]


def test_multiples_of_many_remainders_together_are_refused() -> None:
    began = time.process_time()
    error = check_constraint({"allOf": [{"multipleOf": 65537}, {"multipleOf": 9973}]}).error
    assert error is not None
    assert "too large together; leave one of them out" in error
    assert time.process_time() - began < 60


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1e-400", "-0.1e-999"])
@pytest.mark.parametrize("keyword", ["multipleOf", "minimum", "minLength", "const", "title"])
def test_numbers_that_no_double_holds_are_refused_as_they_are_written(number: str, keyword: str) -> None:
    error = check_constraint(json_schema=f'{{"type": "number", "{keyword}": {number}}}').error
    assert error is not None
    assert error.startswith(f"in the JSON schema, the number {number!r} is too ")
    assert error.endswith("; round it, or leave it out")


@pytest.mark.parametrize("zero", ["0.0", "-0.0", "0e5", "0.000e-999"])
def test_zero_may_be_written_in_any_way(zero: str) -> None:
    assert check_constraint(json_schema=f'{{"const": {zero}}}', samples=["0", "1"]).accepted == [True, False]


COUNTS = ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains"]


@pytest.mark.parametrize("keyword", COUNTS)
@pytest.mark.parametrize("count", [2**32, 2**63, 1e19, 1e30])
def test_counts_beyond_32_bits_are_refused(keyword: str, count: float) -> None:
    schema = {"type": ["array", "string", "object"], "properties": {"a": {}}, "contains": {}, keyword: count}
    error = check_constraint(schema).error
    assert error is not None
    assert f"{keyword!r} at # cannot be enforced" in error
    assert error.endswith("too large; give a smaller number, or leave it out")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2.0, "maxItems": 2.0},
        {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2.0, "maxItems": 2.0},
        {"type": "array", "contains": {"const": 1}, "items": {"enum": [1, 2]}, "maxItems": 2.0, "minItems": 2.0},
    ],
)
def test_counts_may_be_written_as_decimals(schema: Any) -> None:
    assert check_constraint(schema, samples=[[1, 2], [1]]).accepted == [True, False]
