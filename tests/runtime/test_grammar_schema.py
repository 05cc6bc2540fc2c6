"""Which engine a JSON schema goes to, and that whatever comes out is valid."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmnb.errors import GrammarError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.grammar_schema import plan_schema
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
GRAMMARS = Grammars(TOKENIZER, 259)
EOS = 258


def compiled(schema: Any) -> GrammarMatcher:
    return GRAMMARS.compile(Constraint("json_schema", json.dumps(schema)))


def accepts(matcher: GrammarMatcher, text: str) -> bool:
    matcher = matcher.fork()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(EOS)


def random_text(matcher: GrammarMatcher, rng: np.random.Generator) -> str | None:
    """A random walk along the masks, drawn to what closes things; None if it takes too long."""
    out = bytearray()
    mask = np.zeros(-(-259 // 32), dtype=np.int32)
    closers = np.frombuffer(b'"]}', dtype=np.uint8)
    for _ in range(3000):
        assert matcher.fill(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        closing = np.intersect1d(allowed, closers)
        if EOS in allowed and rng.random() < 0.5:
            choice = EOS
        elif len(closing) and rng.random() < 0.4:
            choice = int(rng.choice(closing))
        else:
            choice = int(rng.choice(allowed))
        assert matcher.accept(choice)
        if choice in TOKENIZER.eos_ids:
            return out.decode()
        out.append(choice)
    return None


def check_outputs(schema: Any, seed: int, walks: int = 2) -> None:
    try:
        matcher = compiled(schema)
    except GrammarError as error:
        assert "nothing" in str(error) or "Unsatisfiable" in str(error)  # noqa: PT017 - which error is the point
        return
    for i in range(walks):
        text = random_text(matcher.fork(), np.random.default_rng(seed + i))
        if text is not None:
            value = json.loads(text)
            jsonschema.Draft202012Validator(schema).validate(value)
            assert not re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)), "JSON comes out compact"


names = st.sampled_from(["a", "b", "name", "é", 'q"t', "x\ny", "type", "properties"])
scalars = st.one_of(st.text('ab"\\é\n', max_size=3), st.integers(-5, 50), st.booleans(), st.none())
leaves = st.one_of(
    st.just({}),
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda t: {"type": t}),
    st.just({"type": ["string", "null"], "title": "T"}),
    st.lists(scalars, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    scalars.map(lambda value: {"const": value}),
    st.tuples(st.integers(-20, 5), st.integers(5, 200)).map(
        lambda t: {"type": "integer", "minimum": t[0], "maximum": t[1]}
    ),
    st.integers(-3, 3).map(lambda n: {"type": "integer", "exclusiveMinimum": n}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(names, inner, max_size=3))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = draw(st.lists(st.sampled_from([*properties]), unique=True)) if properties else []
    extra = draw(st.sampled_from([None, False] if properties else [False, True, {"type": "integer"}]))
    return schema if extra is None else {**schema, "additionalProperties": extra}


plain_schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        st.tuples(inner, st.integers(0, 2), st.integers(2, 3)).map(
            lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[2]}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plain_schemas, st.integers(0, 2**31))
def test_plain_schemas_go_to_xgrammar_and_are_enforced(schema: dict[str, Any], seed: int) -> None:
    assert plan_schema(json.dumps(schema)).engine == "xgrammar"
    check_outputs(schema, seed)


OTHER_SCHEMAS: list[Any] = [
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"type": "string", "pattern": "[0-9]x", "minLength": 4, "maxLength": 6},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "ipv4"},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    {"type": "number", "minimum": 1.5, "maximum": 3},
    {"type": "integer", "minimum": 1.5, "maximum": 4},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False, "minItems": 2},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
    {"type": "object", "properties": {"é": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
    {
        "type": "object",
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}]},
    {"type": "string", "enum": ["a", 1]},
    {"minLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    {"type": ["string", "integer"], "maxLength": 2, "minimum": 3},
    {"$defs": {"n": {"type": "array", "maxItems": 2}}, "$ref": "#/$defs/n", "minItems": 1},
    {"enum": [1.5, [1, {"a": 2}], "x"]},
    {"properties": {"next": {"$ref": "#"}}, "type": "object"},
    {"type": "string", "maxLength": 20000},
]


@pytest.mark.parametrize("schema", OTHER_SCHEMAS, ids=json.dumps)
def test_other_schemas_go_to_llguidance_and_are_enforced(schema: dict[str, Any]) -> None:
    assert plan_schema(json.dumps(schema)).engine == "llguidance"
    check_outputs(schema, 1, walks=4)


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        ({"not": {"pattern": "a"}}, "'not'", "#"),
        (
            {"type": "object", "properties": {"a/b": {"if": {"pattern": "a"}, "then": {"maxLength": 2}}}},
            "'if'",
            "#/properties/a~1b",
        ),
        ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, "'uniqueItems'", "#/items"),
        ({"anyOf": [{}, {"contains": {"const": 1}}]}, "'contains'", "#/anyOf/1"),
        ({"$defs": {"d": {"dependentRequired": 1}}}, "'dependentRequired'", "#/$defs/d"),
        (
            {"additionalProperties": {"contains": {"const": 1}, "unevaluatedItems": False}},
            "'unevaluatedItems'",
            "#/additionalProperties",
        ),
        ({"properties": {"a": {"maxLenght": 3}}}, "'maxLenght'", "#/properties/a"),
        ({"properties": {"a": {"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}}}, "oneOf", "#/properties/a"),
        ({"properties": {"a": {"format": "no-such-format"}}}, "no-such-format", "#/properties/a"),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "look-around", "#/properties/a"),
        ({"items": {"$ref": "http://example.org/x"}}, "'$ref'", "#/items"),
        ({"$ref": "#/$defs/missing"}, "'$ref'", "#"),
        ({"properties": {"a": {"type": "text"}}}, "'type'", "#/properties/a"),
        ({"properties": [1]}, "'properties'", "#"),
        ({"items": {"minLength": -1}}, "'minLength'", "#/items"),
        ({"minimum": "3"}, "'minimum'", "#"),
        ({"enum": []}, "'enum'", "#"),
        ({"items": [{}]}, "'items'", "#"),
    ],
)
def test_what_cannot_be_enforced_is_named(schema: dict[str, Any], keyword: str, path: str) -> None:
    with pytest.raises(GrammarError) as error:
        compiled(schema)
    message = str(error.value)
    assert keyword in message
    assert f"at {path} " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{", "not valid JSON.*line 1"),
        ('{"minimum": NaN}', "NaN"),
        ("[]", "is an object"),
        ("false", "allows no value; give an object"),
        ('{"a":' * 30_000, "nested too deeply"),
        ('{"items":' * 5000 + "{}" + "}" * 5000, "nested too deeply"),
        ('{"$ref":"#"}', "no value that ever ends"),
        ('{"type":"array","minItems":3,"maxItems":2}', "satisfied by no value: minItems"),
        ('{"title":"' + "x" * 1_000_001 + '"}', "characters long"),
    ],
)
def test_bad_schemas_are_one_line(source: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as error:
        GRAMMARS.compile(Constraint("json_schema", source))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = {
        "type": "object",
        "properties": {"not": {"type": "integer"}, "$ref": {"type": "boolean"}},
        "required": ["not"],
    }
    matcher = compiled(schema)
    assert matcher.engine == "xgrammar"
    assert accepts(matcher, '{"not":1,"$ref":true}')


def test_objects_that_list_their_properties_are_closed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for engine, extra in (("xgrammar", {}), ("llguidance", {"required": ["a"], "maxProperties": 5})):
        matcher = compiled({**schema, **extra})
        assert matcher.engine == engine
        assert accepts(matcher, '{"a":1}')
        assert not accepts(matcher, '{"a":1,"b":2}')
        assert accepts(compiled({**schema, **extra, "additionalProperties": True}), '{"a":1,"b":2}')
    assert accepts(compiled({"type": "object"}), '{"b":2}')
    # Where parts combine on one value, closing one would contradict the other.
    both = {"allOf": [schema, {"type": "object", "properties": {"b": {"type": "integer"}}}]}
    assert accepts(compiled(both), '{"a":1,"b":2}')


def test_output_is_compact() -> None:
    for schema in (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"minProperties": 1, "type": "object"},
    ):
        matcher = compiled(schema)
        assert accepts(matcher, '{"a":1,"b":2}')
        assert not accepts(matcher, '{"a": 1}')
        assert not accepts(matcher, '{"a":1, "b":2}')
        assert not accepts(matcher, '{"a":1}\n')


def test_true_is_any_json() -> None:
    matcher = GRAMMARS.compile(Constraint("json_schema", "true"))
    assert accepts(matcher, '{"a":[1,null,"x"]}')


def test_the_options_of_the_library_cannot_be_set_from_a_schema() -> None:
    schema = {"x-guidance": {"lenient": True, "whitespace_flexible": True}, "type": "array", "prefixItems": [{}, {}]}
    assert not accepts(compiled(schema), "[1, 2]")


def test_strings_are_utf_8() -> None:
    """Surrogates have no form in UTF-8, though their bytes look like a character's."""
    for schema in ({"type": "string"}, {"type": "string", "maxLength": 3}):
        matcher = compiled(schema)
        mask = np.zeros(9, dtype=np.int32)
        for prefix, allowed in ((b'"\xed', (0x80, 0x9F)), (b'"\xee', (0x80, 0xBF)), (b'"\xf4', (0x80, 0x8F))):
            forked = matcher.fork()
            assert all(forked.accept(byte) for byte in prefix)
            assert forked.fill(mask)
            tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            assert (tokens[0], tokens[-1]) == allowed
            assert [forked.fork().accept(byte) for byte in (0x9F, 0xA0)] == [allowed[1] >= 0x9F, allowed[1] >= 0xA0]
        assert all(matcher.accept(byte) for byte in '"€'.encode() + b"\xed")
        matcher.rollback(3)  # to after the first byte of "€"
        assert matcher.fork().accept(0xA0)


def test_recursive_schemas() -> None:
    schema = {
        "$defs": {
            "tree": {"type": "object", "properties": {"sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
        },
        "$ref": "#/$defs/tree",
    }
    matcher = compiled(schema)
    assert matcher.engine == "xgrammar"
    assert accepts(matcher, '{"sub":[{"sub":[]},{}]}')
    assert not accepts(matcher, '{"sub":[1]}')
