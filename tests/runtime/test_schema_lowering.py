"""Keywords that no grammar library knows, rewritten: accepted is exactly what the jsonschema library accepts.

In both directions: what a grammar accepts is valid, and every valid value of a small universe is accepted.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmnb.errors import GrammarError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, cache_size=2)
END = min(TOKENIZER.eos_ids)

VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, -1, 1.5, 2.7, "", "a", "b", "ab", "abc",
    [], [1], [1, 1], [1, 2], [2, 1], ["a"], ["a", "b"], ["b", "a"], [1, "a"], [1, "a", None], [None, None],
    {}, {"a": 1}, {"a": "a"}, {"b": 1}, {"a": 1, "b": 1}, {"a": "a", "b": "b"}, {"c": 1}, {"a": 1, "c": "x"},
    {"a": None}, {"a": 1, "b": 2, "c": 3}, {"a": {"a": 1}}, {"a": {"b": "a"}}, {"ab": 1}, {"b": "a", "c": None},
]  # fmt: skip


def compiled(schema: Any) -> GrammarMatcher:
    return GRAMMARS.compile(Constraint("json_schema", json.dumps(schema)))


def accepts(matcher: GrammarMatcher, value: Any) -> bool:
    """Whether the value is accepted with its properties in some order."""
    for form in _forms(value):
        copy = matcher.fork()
        text = json.dumps(form, ensure_ascii=False, separators=(",", ":"))
        if all(copy.accept(byte) for byte in text.encode()) and copy.accept(END):
            return True
    return False


def _forms(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from ({name: value[name] for name in order} for order in itertools.permutations(value))
    else:
        yield value


def check(schema: Any, values: list[Any]) -> None:
    """The grammar's opinion of each value is the validator's."""
    validator = jsonschema.Draft202012Validator(schema)
    matcher = compiled(schema)
    for value in values:
        assert accepts(matcher, value) == validator.is_valid(value), (schema, value)


OBJECT = {"type": "object", "additionalProperties": True}
KIND = {"properties": {"a": {"enum": ["a", "b"]}, "b": True, "c": True}, "additionalProperties": False}
REWRITTEN: list[dict[str, Any]] = [
    {"not": {"type": ["string", "number"]}},
    {"not": {"enum": ["a", "ab", "", None]}},
    {"not": {"const": 1}, "type": ["integer", "null"]},
    {"not": {"const": True}},
    {"not": {"required": ["a", "b"]}, **OBJECT},
    {"not": {"properties": {"a": {"type": "string"}}}},
    {"not": {"anyOf": [{"minimum": 1}, {"type": "string"}, {"type": "null"}]}},
    {"not": {"not": {"type": "array", "minItems": 2}}},
    {"not": {"$ref": "#/$defs/d"}, "$defs": {"d": {"minItems": 1, "maxLength": 1, "exclusiveMaximum": 2.7}}},
    {"if": {"properties": {"a": {"const": "a"}}, "required": ["a"]}, "then": {"required": ["b"]}, **KIND},
    {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "else": {"required": ["c"]}, **OBJECT},
    {"if": {"type": "string"}, "else": {"type": "object"}},
    {"if": {"type": "string"}, "then": {"maxLength": 1}},
    {"if": False, "then": {"const": 1}, "else": {"type": "string"}},
    {"then": False},
    {"dependentRequired": {"a": ["b"], "b": ["a", "c"]}, **OBJECT},
    {"dependentRequired": {"a": []}, **OBJECT},
    {"dependentRequired": {"a": ["c"]}, "properties": {"a": {"type": "integer"}, "c": True}, "required": ["a"]},
    {"dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}, "c": False}},
    {"oneOf": [{"required": ["c"], "dependentSchemas": {"c": {"enum": [True, 2]}}}, {}]},
    {"unevaluatedItems": False, "dependentSchemas": {"a": {"items": True}}},
    {"dependencies": {"a": ["b"], "b": {"maxProperties": 1}}},
    {"propertyNames": {"pattern": "^a"}},
    {"propertyNames": {"maxLength": 1}, "additionalProperties": {"type": "integer"}},
    {"propertyNames": {"enum": ["a", "c"]}},
    {"propertyNames": {"const": "a"}, "properties": {"a": {"type": "integer"}, "b": True}},
    {"propertyNames": {"minLength": 2}, "properties": {"a": True, "ab": True}, "additionalProperties": False},
    {"propertyNames": False},
    {"contains": {"const": 1}, "maxItems": 3},
    {"contains": {"type": "integer"}, "minContains": 2, "maxItems": 3},
    {"contains": {"type": "string"}, "minContains": 0, "maxContains": 1, "maxItems": 2},
    {"contains": {"type": ["number", "string"]}, "maxContains": 1, "maxItems": 3},
    {"contains": {"type": "null"}, "minContains": 0, "maxContains": 0},
    {"contains": False},
    {"contains": True, "minContains": 2},
    {"maxContains": 1, "type": "array"},
    {"uniqueItems": True, "items": {"enum": [1, 2, "a"]}},
    {"uniqueItems": True, "items": {"enum": [1, 1.0, "a", "b"]}, "minItems": 1, "maxItems": 2, "type": "array"},
    {"uniqueItems": True, "items": {"type": ["boolean", "null"]}},
    {"uniqueItems": True, "items": {"$ref": "#/$defs/d"}, "$defs": {"d": {"enum": ["a", "b"]}}},
    {"uniqueItems": True, "maxItems": 1},
    {"uniqueItems": False},
    {"unevaluatedProperties": False, "properties": {"a": True}},
    {"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]},
    {"unevaluatedProperties": {"type": "string"}, "$ref": "#/$defs/d", "$defs": {"d": {"properties": {"a": True}}}},
    {"unevaluatedProperties": False, "anyOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": True}}]},
    {
        "unevaluatedProperties": False,
        "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
        "then": {"properties": {"b": True}},
        "else": {"properties": {"c": True}},
    },
    {"unevaluatedProperties": False, "dependentSchemas": {"a": {"properties": {"a": True, "b": True}}}},
    {"unevaluatedProperties": False, "patternProperties": {"^a": True}},
    {"unevaluatedItems": False, "prefixItems": [True], "allOf": [{"prefixItems": [True, {"type": "integer"}]}]},
    {"unevaluatedItems": {"type": "string"}, "prefixItems": [True]},
    {"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number", "not": {"type": "number"}}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], **OBJECT},
    {"oneOf": [{"maxLength": 1}, {"minLength": 1, "type": "string"}]},
    {"oneOf": [{"minimum": 1, "type": "number"}, {"maximum": 1, "type": "number"}, {"type": "string"}]},
    {"oneOf": [True, False]},
    {"minProperties": 2, "properties": {"a": True, "b": True, "c": True}, "additionalProperties": False},
    {"maxProperties": 1, "properties": {"a": True, "b": True, "c": True}, "additionalProperties": False},
    {"minProperties": 2, "maxProperties": 2, "properties": {"a": True, "b": True, "c": True}, "required": ["a"],
     "additionalProperties": False},
    {"$ref": "#/properties/b", "properties": {"b": {"type": "integer", "not": {"const": 1}}}},
    {"properties": {"a": {"$ref": "#/if"}}, "if": {"type": "integer"}, **OBJECT},
    {"properties": {"a": {"$ref": "#word"}}, "$defs": {"w": {"$anchor": "word", "const": "a"}}, **OBJECT},
    {"$id": "http://x.y/z", "properties": {"a": {"$ref": "z#/$defs/w"}}, "$defs": {"w": {"const": "a"}}, **OBJECT},
    {"$id": "http://x.y/z/", "items": {"$ref": "n"}, "$defs": {"n": {"$id": "n", "type": "null"}}},
    {"$dynamicAnchor": "n", "type": ["object", "integer"], "additionalProperties": {"$dynamicRef": "#n"}},
    {"contentMediaType": "text/plain", "contentEncoding": "base64", "contentSchema": {"const": 1}, "type": "string"},
    {"const": -0.0},
]  # fmt: skip


@pytest.mark.parametrize("schema", REWRITTEN, ids=lambda schema: json.dumps(schema)[:60])
def test_what_is_rewritten_means_the_same(schema: dict[str, Any]) -> None:
    opened = {**schema, "additionalProperties": True} if _is_closed_by_default(schema) else schema
    if "dependencies" in schema:  # later drafts' validators do not know it
        validator: Any = jsonschema.Draft7Validator(schema)
        matcher = compiled(opened)
        assert all(accepts(matcher, value) == validator.is_valid(value) for value in VALUES)
    else:
        check(opened, VALUES)


def _is_closed_by_default(schema: dict[str, Any]) -> bool:
    says_more = {"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties"}
    return "properties" in schema and not says_more & schema.keys()


@pytest.mark.parametrize("seed", range(6))
def test_patterns_beside_names_and_codes(seed: int) -> None:
    """A listed name cannot be written in another way, and so get another property's value."""
    schemas: list[Any] = [
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": True, "required": ["a"]},
        {"patternProperties": {"^a": {"type": "integer"}}},
        {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
        {"dependentSchemas": {"a": {"properties": {"a": {"type": "integer"}}}}},
    ]
    matcher = compiled({"type": "object", **schemas[seed]})
    for text in (r'{"\u0061":"x"}', r'{"a":1,"\u0061":"x"}', r'{"\u0061b":"x"}'):
        copy = matcher.fork()
        taken = all(copy.accept(byte) for byte in text.encode()) and copy.accept(END)
        assert not taken or jsonschema.Draft202012Validator(schemas[seed]).is_valid(json.loads(text)), text


@pytest.mark.parametrize("schema", [{"oneOf": [True, True]}, {"not": {}}, {"not": True}])
def test_what_allows_nothing_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=r"nothing|Unsatisfiable"):
        compiled(schema)


def test_a_property_cannot_be_counted_twice() -> None:
    for schema in ({"type": "object", "minProperties": 2}, {"patternProperties": {"a": True}, "minProperties": 3}):
        with pytest.raises(GrammarError, match="written twice"):
            compiled(schema)
    assert accepts(compiled({"type": "object", "minProperties": 1}), {"a": 1})


NAMES = ["a", "b", "c", "ab"]


class Draw:
    """Schemas of the keywords that are rewritten, and what may stand beside them."""

    FOCUS = (
        ["not"], ["if", "then"], ["if", "then", "else"], ["dependentRequired"], ["dependentSchemas"], ["propertyNames"],
        ["contains", "maxItems"], ["contains", "maxContains", "maxItems"], ["uniqueItems", "items"], ["oneOf"],
        ["unevaluatedProperties", "properties"], ["unevaluatedProperties", "anyOf"], ["minimum", "maximum"], [],
        ["unevaluatedItems", "prefixItems"], ["minProperties", "properties", "additionalProperties"],
    )  # fmt: skip
    LEAVES = (
        True, False, {}, {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": ["string", "null"]},
        {"minimum": 1}, {"maxLength": 1}, {"required": ["a"]}, {"enum": ["a", 1, None]}, {"const": "b"},
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def document(self) -> dict[str, Any]:
        node = self.node(2)
        return {**(node if isinstance(node, dict) else {}), "$defs": {"d": self.node(1), "e": self.node(0)}}

    def node(self, depth: int) -> Any:
        if depth == 0 and self.rng.random() < 0.5:
            return self.rng.choice(self.LEAVES)
        keys = {*self.rng.choice(self.FOCUS), *self.rng.sample(KEYWORDS, self.rng.randrange(3))}
        node = {key: self.value(key, depth - 1) for key in self.rng.sample(sorted(keys), len(keys))}
        if "properties" in node and not {"additionalProperties", "unevaluatedProperties"} & node.keys():
            node["additionalProperties"] = True  # it would be closed
        return node

    def value(self, key: str, depth: int) -> Any:
        rng = self.rng
        some = max(0, depth)
        if key in ("properties", "dependentSchemas"):
            return {name: self.node(some) for name in rng.sample(NAMES, rng.randint(1, 2))}
        if key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            return [self.node(some) for _ in range(rng.randint(1, 2))]
        if key.startswith(("min", "max")) and key not in ("minimum", "maximum"):
            return rng.randint(0, 3)
        fixed: dict[str, Any] = {
            "type": rng.choice(["object", "array", "string", "number", "integer", ["object", "array"]]),
            "enum": rng.sample(VALUES, rng.randint(1, 4)),
            "const": rng.choice(VALUES),
            "required": rng.sample(NAMES, 1),
            "patternProperties": {rng.choice(["^a", "b", "^c$"]): True},
            "propertyNames": rng.choice([{"pattern": "^[ab]+$"}, {"maxLength": 1}, {"enum": ["a", "b"]}, False]),
            "dependentRequired": {rng.choice(NAMES): rng.sample(NAMES, 1)},
            "uniqueItems": True,
            "unevaluatedItems": False,
            "multipleOf": rng.choice([1, 0.5, 2]),
            "$ref": rng.choice(["#/$defs/d", "#/$defs/e"]),
        }
        if key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            return rng.choice([0, 1, 1.25, 1.75, 2.5, 2.75])
        return fixed[key] if key in fixed else self.node(some)


KEYWORDS = [
    "type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
    "dependentRequired", "dependentSchemas", "minProperties", "maxProperties", "items", "prefixItems", "minItems",
    "maxItems", "contains", "minContains", "maxContains", "minLength", "maxLength", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "not", "anyOf", "oneOf", "allOf", "if", "then", "else",
    "unevaluatedProperties", "$ref",
]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 40))
def test_random_schemas_mean_the_same(seed: int) -> None:
    schema = Draw(seed).document()
    validator = jsonschema.Draft202012Validator(schema)
    try:
        truth = [validator.is_valid(value) for value in VALUES]
    except RecursionError:  # a schema that refers to itself without end
        return
    try:
        matcher = compiled(schema)
    except GrammarError:
        return
    for value, valid in zip(VALUES, truth, strict=True):
        assert accepts(matcher, value) == valid, (schema, value)


def test_hundreds_of_alternatives_are_told_apart_by_a_mark() -> None:
    marks = {
        f"d{i}": {
            "type": "object",
            "properties": {"kind": {"const": i}, "v": {"type": "integer"}},
            "required": ["kind"],
        }
        for i in range(300)
    }
    schema = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in marks], "$defs": marks}
    matcher = compiled(schema)
    assert accepts(matcher, {"kind": 299, "v": 1})
    assert not accepts(matcher, {"kind": 300})
    same = {**marks, "d1": {**marks["d1"], "properties": {"kind": {"enum": [0, 1]}}}}
    with pytest.raises(GrammarError, match="overlap"):
        compiled({**schema, "$defs": same})


OPEN_OR_NOT: list[Any] = [
    {
        "oneOf": [
            {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "number"}, "c": {"type": "number"}}},
        ]
    },
    {"oneOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {}}}], "$defs": {"a": {"properties": {"a": {}}}}},
    {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "properties": {"b": {}}}]},
    {"items": {"oneOf": [{"properties": {"a": {"oneOf": [{"properties": {"a": {}}}, {"type": "string"}]}}}, True]}},
    {"type": "array", "contains": {"properties": {"a": {"type": "number"}}}, "maxContains": 1, "maxItems": 2},
    {"anyOf": [{"oneOf": [{"type": "object", "properties": {"a": {}}}, {"properties": {"a": {"const": 1}}}]}]},
]


@pytest.mark.parametrize("schema", OPEN_OR_NOT, ids=lambda schema: json.dumps(schema)[:60])
def test_closing_objects_adds_no_value(schema: dict[str, Any]) -> None:
    """What is counted or forbidden is so in JSON Schema's own sense, where objects are open."""
    try:
        matcher = compiled(schema)
    except GrammarError:
        return
    values = [*VALUES, [{"a": 1}, {"a": 2, "b": 1}], [{"a": 1}, {"a": "a"}], {"a": {"b": 1}}, {"b": 1, "c": 2}]
    validator = jsonschema.Draft202012Validator(schema)
    assert [value for value in values if accepts(matcher, value) and not validator.is_valid(value)] == []


def test_alternatives_with_names_of_their_own_are_closed() -> None:
    one, two = ({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]} for name in "ab")
    schema = {"oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}], "$defs": {"one": one, "two": two}}
    matcher = compiled(schema)
    samples = [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 1}]
    assert [accepts(matcher, sample) for sample in samples] == [True, True, False, False]


@pytest.mark.parametrize("count", [2, 120])
def test_names_of_their_own_are_seen_in_many_alternatives(count: int) -> None:
    parts = [{"type": "object", "properties": {f"a{i}": {}}, "required": [f"a{i}"]} for i in range(count)]
    matcher = compiled({"oneOf": parts})
    samples: list[Any] = [{"a1": 1}, {"a1": 1, "b": 1}, {"a0": 1, "a1": 1}]
    assert [accepts(matcher, sample) for sample in samples] == [True, False, False]


class ObjectsDraw:
    """Schemas of objects that are closed by default, also in what is counted or forbidden."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = ("d", "e")

    def document(self) -> dict[str, Any]:
        whole = self.node(3)
        self.names = ()
        return {**whole, "$defs": {"d": self.node(1), "e": self.node(2)}}

    def node(self, depth: int) -> dict[str, Any]:
        rng = self.rng
        if depth == 0:
            return {"type": rng.choice(["number", "string", "null"])}
        inner = partial(self.node, depth - 1)
        choices: list[Callable[[], dict[str, Any]]] = [
            *[lambda: {"oneOf": [inner() for _ in range(rng.randint(1, 3))]}] * 2,
            *[partial(self.an_object, depth)] * 4,
            lambda: {"anyOf": [inner(), inner()]},
            lambda: {"not": inner()},
            lambda: {"if": inner(), rng.choice(["then", "else"]): inner()},
            lambda: {"type": "array", "contains": inner(), "maxItems": 2, "maxContains": 1},
            lambda: {"type": "array", "items": inner(), "maxItems": 2},
            lambda: {"enum": ["a", 1, None]},
        ]
        choices += [lambda: {"$ref": f"#/$defs/{rng.choice(self.names)}"}] * len(self.names)
        return rng.choice(choices)()

    def an_object(self, depth: int) -> dict[str, Any]:
        listed = self.rng.sample("abc", self.rng.randint(1, 2))
        required = [name for name in "abc" if self.rng.random() < (0.5 if name in listed else 0.05)]
        properties = {name: self.node(self.rng.randrange(depth)) for name in listed}
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 40))
def test_random_objects_closed_by_default_are_valid(seed: int) -> None:
    schema = ObjectsDraw(seed).document()
    validator = jsonschema.Draft202012Validator(schema)
    try:
        matcher = compiled(schema)
    except GrammarError:
        return
    for value in VALUES:
        assert validator.is_valid(value) or not accepts(matcher, value), (schema, value)
