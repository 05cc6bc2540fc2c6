"""Which objects have further properties, that it is said where, and what their texts may not hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

import lmnb
from lmnb.errors import ArgumentError

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["x", "y"]}, "old": {"type": "boolean"}},
    "required": ["name"],
}
REFERENCE = {"$ref": "#/$defs/person"}
MORE = {"name": "x", "zzz": 1}


def defining(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "$defs": {"person": PERSON}}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [PERSON]},
        {"anyOf": [PERSON], "title": "one"},
        {"oneOf": [{"allOf": [PERSON]}]},
        defining({"allOf": [REFERENCE], "description": "as OpenAPI writes it"}),
        defining({"allOf": [REFERENCE, {"required": ["old"]}], "unevaluatedProperties": False}),
    ],
    ids=str,
)
def test_a_part_by_itself_is_as_closed_as_without(schema: dict[str, Any]) -> None:
    report = lmnb.check_constraint(schema, [{"name": "x", "old": True}, {**MORE, "old": True}, MORE])
    assert report.accepted == [True, False, False]
    assert not report.notes


def test_a_place_where_schemas_meet_opens_no_other() -> None:
    schema = {
        "type": "object",
        "properties": {"met": {**PERSON, "not": {"required": ["old"]}}, "plain": PERSON},
        "required": ["met"],
    }
    samples: list[Any] = [{"met": MORE}, {"met": {"name": "x"}, "plain": MORE}, {"met": {"name": "x"}, "zzz": 1}]
    report = lmnb.check_constraint(schema, samples)
    assert report.accepted == [True, False, False]
    assert "#/properties/met;" in report.notes[0]
    assert "unevaluatedProperties" in str(report)


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        (defining({**REFERENCE, "required": ["old"]}), "#/$defs/person"),
        ({**PERSON, "if": {"properties": {"name": {"const": "x"}}}, "then": {"required": ["old"]}}, "#"),
        (
            {**PERSON, "dependentSchemas": {"old": {"properties": {"name": {"const": "x"}}}}},
            "#, #/dependentSchemas/old",
        ),
        ({**PERSON, "patternProperties": {"^k": {"type": "integer"}}}, "#"),
        ({**PERSON, "required": ["name", "unlisted"]}, "#"),
    ],
    ids=str,
)
def test_what_is_open_is_noted(schema: dict[str, Any], places: str) -> None:
    sample = {"name": "x", "old": True, "unlisted": 2, "zzz": 1}
    report = lmnb.check_constraint(schema, [sample])
    assert report.accepted == [True], report
    assert f"beside those at {places};" in str(report)


def test_definitions_stay_open_only_where_they_meet_others() -> None:
    """A definition that meets others in one place cannot be closed in another."""
    schema = defining({"type": "object", "properties": {"a": REFERENCE, "b": {**REFERENCE, "required": ["old"]}}})
    report = lmnb.check_constraint(schema, [{"a": MORE}, {"a": {"name": "x"}, "zzz": 1}])
    assert report.accepted == [True, False]
    assert "#/$defs/person" in report.notes[0]


def test_references_into_a_lone_part_still_lead_there() -> None:
    schema = {
        "allOf": [{"$defs": {"p": PERSON}, "properties": {"p": {"$ref": "#/allOf/0/$defs/p"}}, "required": ["p"]}]
    }
    assert lmnb.check_constraint(schema, [{"p": {"name": "x"}}, {"p": {"name": "z"}}]).accepted == [True, False]


@pytest.mark.parametrize("style", ["compact", "loose"])
@pytest.mark.parametrize("engine", ["auto", "xgrammar", "llguidance"])
def test_no_text_holds_half_a_character(engine: str, style: str) -> None:
    schemas: list[Any] = [{}, {"type": "object", "additionalProperties": {"type": "string"}}]
    for schema in schemas:
        texts = [r'{"a":"\ud83d"}', r'{"a":"\uDE00"}', r'{"a":"\ud83d\ude00"}', r'{"\uD83D":"a"}', r'{"a":"\udfff"}']
        report = lmnb.check_constraint(schema, [*texts, '{"😀":"퟿😀"}'], grammar_backend=engine, json_style=style)
        assert report.accepted == [False] * 5 + [True]


@pytest.mark.parametrize(
    "text", ["éa", "ÿ0", "\x85f", "Āa", "𝔸a", "\\x41", "\\\\xe9a", "é\\xe9é1", '\n\\"\tb', "'?-]\\"], ids=ascii
)
def test_listed_texts_are_themselves(text: str) -> None:
    schema = {"type": "object", "properties": {text: {"enum": [text, 2 * text]}}, "required": [text]}
    samples = [{text: text}, {text: 2 * text}, {text: text + "z"}, {text: text[:-1]}]
    assert lmnb.check_constraint(schema, samples, grammar_backend="xgrammar").accepted == [True, True, False, False]


def test_other_escapes_are_left_to_the_model() -> None:
    texts = [r'["\ud7ff"]', r'["\uE000"]', r'["\u00e9"]', r'["\n\\\""]']
    report = lmnb.check_constraint({"type": "array", "items": {"type": "string"}}, texts, grammar_backend="xgrammar")
    assert report.accepted == [True] * 4
    assert all(json.loads(text)[0].encode() for text in texts)


@pytest.mark.parametrize(
    ("schema", "advice"),
    [
        ({"type": "string", "nullable": True}, '"type": [..., "null"]'),
        ({"components": {"schemas": {}}}, "into $defs"),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2}, "additionalProperties: false"),
        ({"type": "string", "pattern": r"^[\w-\.]+$"}, r"stands for itself as \-"),
    ],
    ids=str,
)
def test_a_refusal_says_what_to_say_instead(schema: dict[str, Any], advice: str) -> None:
    assert advice in str(lmnb.check_constraint(schema).error)


def test_a_type_in_brackets_is_a_slip() -> None:
    with pytest.raises(ArgumentError, match=r"did you mean list\[int\]"):
        lmnb.check_constraint(json_schema=[int])


@pytest.mark.parametrize(
    ("schema", "place", "name"),
    [
        ('{"type":"string","type":"integer"}', "#", "'type'"),
        ('{"properties":{"a":{"enum":[{"x":1,"x":2}]}}}', "#/properties/a/enum/0", "'x'"),
        ('{"properties":{"a/b~":{"type":"string","type":"null"}}}', "#/properties/a~1b~0", "'type'"),
        ('{"a":{"b":1,"b":2},"a":3}', "#", "'a'"),
        ('{"a":3,"a":{"b":1,"b":2}}', "#", "'a'"),
        ({"properties": {1: {"type": "string"}, "1": {"type": "integer"}}}, "#/properties", "'1'"),
    ],
    ids=str,
)
def test_a_name_twice_in_one_object_is_refused(schema: Any, place: str, name: str) -> None:
    said = f"in the JSON schema, the object at {place} has the name {name} twice; leave one of them out"
    assert lmnb.check_constraint(json_schema=schema).error == said


@pytest.mark.parametrize("kind", ["json", "regex"])
def test_a_name_twice_in_a_grammars_json_is_refused(kind: str) -> None:
    error = lmnb.check_constraint(ebnf=f'start: "a" b\nb: %{kind} {{"a": {{"x": 1, "x": 2}}}}\n').error
    assert error == ("in the grammar's JSON (line 2), the object at #/a has the name 'x' twice; leave one of them out")


@pytest.mark.parametrize(
    ("schema", "place", "said"),
    [
        ({"format": "date-time", "maxLength": 3}, "#", "no text fits its format and maxLength together"),
        ({"format": "date", "pattern": "^x", "maxLength": 9}, "#", "its format, pattern and maxLength together"),
        ({"allOf": [{"enum": ["a"]}, {"enum": ["b"]}]}, "#", "minLength and maxLength together"),
        (
            {"required": ["k"], "properties": {"k": {"type": "string", "pattern": "^a$", "minLength": 3}}},
            "#/properties/k",
            "no text fits its pattern and minLength together",
        ),
    ],
    ids=str,
)
def test_limits_that_no_text_fits_are_named(schema: dict[str, Any], place: str, said: str) -> None:
    kind = "object" if "properties" in schema else "string"
    error = str(lmnb.check_constraint({"type": kind, **schema}).error)
    assert said in error
    assert f"JSON schema at {place} cannot" in error
    assert "Regex" not in error
