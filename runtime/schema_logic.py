"""What can be said of JSON schemas by reading them: which types they allow, their opposite, whether two of them exclude
each other, and the few values that one may list. All of it on plain keywords, references being pointers from a root.

Where nothing certain can be said, it is not said: `opposite` raises, `excludes` is False, `values_of` is None.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

TYPES = ("object", "array", "string", "number", "boolean", "null")
_MAX_DEPTH = 12
_MOST_READINGS = 30_000  # of nodes; beyond that nothing is certain
_MISSING = object()


class NoOppositeError(Exception):
    """The keyword whose opposite JSON Schema has no words for."""


class SchemaLogic:
    """Reads the nodes of one schema. `target` gives what a reference points to."""

    def __init__(self, target: Callable[[str], Any]) -> None:
        self._target = target
        self._left = _MOST_READINGS

    def _is_too_much(self, depth: int) -> bool:
        self._left -= 1
        return depth > _MAX_DEPTH or self._left < 0

    def followed(self, schema: Any) -> Any:
        """What the schema refers to, if it is nothing but a reference; else itself."""
        return self._target(schema["$ref"]) if isinstance(schema, dict) and schema.keys() == {"$ref"} else schema

    def types(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """The types a value may have; "integer" counts as "number"."""
        if schema is False:
            return frozenset()
        found = frozenset(TYPES)
        if not isinstance(schema, dict) or self._is_too_much(depth):
            return found
        if "type" in schema:
            found &= {_general(kind) for kind in _listed(schema["type"])}
        for values in _value_lists(schema):
            found &= {type_of(value) for value in values}
        for part in schema.get("allOf", ()):
            found &= self.types(part, depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                found &= {kind for part in schema[key] for kind in self.types(part, depth + 1)}
        if "$ref" in schema:
            found &= self.types(self._target(schema["$ref"]), depth + 1)
        return found

    def values(self, schema: Any, depth: int = 0) -> list[Any] | None:
        """All values that `schema` allows, if it lists them and says nothing else; each once."""
        if not isinstance(schema, dict) or self._is_too_much(depth):
            return None
        said = {key for key in schema if key not in ANNOTATIONS and not key.startswith("x-")}
        found: list[Any] | None = None
        if said == {"$ref"}:
            return self.values(self._target(schema["$ref"]), depth + 1)
        if said == {"anyOf"}:
            parts = [self.values(part, depth + 1) for part in schema["anyOf"]]
            found = None if any(part is None for part in parts) else [value for part in parts for value in part or ()]
        elif said <= {"enum", "type"} and "enum" in said:
            found = schema["enum"]
        elif said <= {"const", "type"} and "const" in said:
            found = [schema["const"]]
        elif said == {"type"}:
            each: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
            kinds = _listed(schema["type"])
            found = [value for kind in kinds for value in each[kind]] if set(kinds) <= each.keys() else None
        if found is None:
            return None
        if "type" in schema:
            found = [value for value in found if has_type(value, schema["type"])]
        return list({json_key(value): value for value in found}.values())

    def excludes(self, one: Any, other: Any, depth: int = 0) -> bool:
        """Whether certainly no value is allowed by both."""
        if one is False or other is False:
            return True
        if not isinstance(one, dict) or not isinstance(other, dict) or self._is_too_much(depth):
            return False
        common = self.types(one) & self.types(other)
        if not common:
            return True
        for first, second in ((one, other), (other, one)):
            if "$ref" in first and self.excludes(self._target(first["$ref"]), second, depth + 1):
                return True
            if any(self.excludes(part, second, depth + 1) for part in first.get("allOf", ())):
                return True
            for key in ("anyOf", "oneOf"):
                if key in first and all(self.excludes(part, second, depth + 1) for part in first[key]):
                    return True
            for values in _value_lists(first):
                if all(self.rejects(second, value) for value in values):
                    return True
        return all(self._apart(kind, one, other, depth) for kind in common)

    def _apart(self, kind: str, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        """Whether no value of this type is allowed by both nodes."""
        if kind == "object":
            return self._objects_apart(one, other, depth)
        if kind == "number":
            return _below(one, other) or _below(other, one)
        low, high = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}.get(kind, ("", ""))
        return bool(low) and _counts_apart(one, other, low, high)

    def rejects(self, schema: Any, value: Any, depth: int = 0) -> bool:
        """Whether `schema` certainly does not allow `value`."""
        if isinstance(schema, bool):
            return not schema
        if not isinstance(schema, dict) or self._is_too_much(depth):
            return False
        if "type" in schema and not has_type(value, schema["type"]):
            return True
        if any(all(json_key(value) != json_key(other) for other in values) for values in _value_lists(schema)):
            return True
        if any(self.rejects(part, value, depth + 1) for part in schema.get("allOf", ())):
            return True
        if any(
            key in schema and all(self.rejects(part, value, depth + 1) for part in schema[key])
            for key in ("anyOf", "oneOf")
        ):
            return True
        if "$ref" in schema and self.rejects(self._target(schema["$ref"]), value, depth + 1):
            return True
        if isinstance(value, str):
            return not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        if isinstance(value, list):
            return not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        if isinstance(value, dict):
            return any(name not in value for name in schema.get("required", ())) or any(
                self.rejects(_property(schema, name), item, depth + 1) for name, item in value.items()
            )
        if isinstance(value, int | float) and not isinstance(value, bool):
            return (
                value < schema.get("minimum", value)
                or value > schema.get("maximum", value)
                or ("exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"])
                or ("exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"])
            )
        return False

    def opposite(self, schema: Any, met: tuple[str, ...] = ()) -> Any:
        """A schema of exactly the values that `schema` forbids. NoOppositeError names the keyword in the way."""
        if isinstance(schema, bool):
            return not schema
        if self._is_too_much(len(met)):
            raise NoOppositeError("size")
        alternatives = [part for part in self._opposites(schema, met) if part is not False]
        if not alternatives:
            return False
        if any(part is True for part in alternatives):
            return True
        return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}

    def _opposites(self, schema: dict[str, Any], met: tuple[str, ...]) -> Iterator[Any]:
        for key, value in schema.items():
            if key == "type":
                kinds = _listed(value)
                if "integer" in kinds and "number" not in kinds:
                    raise NoOppositeError("type: integer")
                yield {"type": [kind for kind in TYPES if kind not in kinds]} if set(TYPES) - set(kinds) else False
            elif key in ("enum", "const"):
                yield _none_of(value if key == "enum" else [value])
            elif key == "required":
                yield from ({"type": "object", "properties": {name: False}} for name in value)
            elif key == "properties":
                for name, part in value.items():
                    other = self.opposite(part, met)
                    if other is not False:
                        yield {"type": "object", "properties": {name: other}, "required": [name]}
            elif key in ("anyOf", "oneOf"):
                if key == "oneOf" and not self.all_exclude(value):
                    raise NoOppositeError("oneOf")
                yield {"allOf": [self.opposite(part, met) for part in value]}
            elif key == "allOf":
                yield from (self.opposite(part, met) for part in value)
            elif key == "$ref":
                if value in met:
                    raise NoOppositeError("$ref")
                yield self.opposite(self._target(value), (*met, value))
            elif key in _OPPOSITE_BOUNDS:
                yield {"type": "number", _OPPOSITE_BOUNDS[key]: value}
            elif key in _OPPOSITE_COUNTS:
                other, kind, step = _OPPOSITE_COUNTS[key]
                if value + step >= 0:
                    yield {"type": kind, other: int(value) + step}
            elif key in ANNOTATIONS or key.startswith("x-") or (key in _OPEN and (value is True or value == {})):
                continue
            else:
                raise NoOppositeError(key)

    def all_exclude(self, schemas: list[Any]) -> bool:
        """Whether certainly no two of them allow one value."""
        return self.have_marks(schemas) or all(
            self.excludes(one, other) for i, one in enumerate(schemas) for other in schemas[:i]
        )

    def have_marks(self, schemas: list[Any]) -> bool:
        """Whether they are objects with a required property that has a value of its own in each: of hundreds of schemas
        this is quicker to see than of each pair."""
        nodes = [self._target(node["$ref"]) if isinstance(node, dict) and "$ref" in node else node for node in schemas]
        if not all(isinstance(node, dict) and node.get("type") == "object" for node in nodes):
            return False
        for name in nodes[0].get("required", ()) if nodes else ():
            if all(name in node.get("required", ()) for node in nodes):
                marks = [self.values(_property(node, name)) for node in nodes]
                keys = [json_key(value) for mark in marks for value in mark or ()]
                if None not in marks and len(set(keys)) == len(keys):
                    return True
        return False

    def _objects_apart(self, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        names = {*one.get("required", ()), *other.get("required", ())}
        return any(
            self.excludes(_property(one, name), _property(other, name), depth + 1) for name in names
        ) or _counts_apart(one, other, "minProperties", "maxProperties")


_OPPOSITE_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_OPPOSITE_COUNTS = {
    "minLength": ("maxLength", "string", -1),
    "maxLength": ("minLength", "string", 1),
    "minItems": ("maxItems", "array", -1),
    "maxItems": ("minItems", "array", 1),
    "minProperties": ("maxProperties", "object", -1),
    "maxProperties": ("minProperties", "object", 1),
}
_OPEN = ("additionalProperties", "items")
# What says nothing of a value.
ANNOTATIONS = {"$schema", "$id", "$comment", "title", "description", "default", "example", "examples", "$defs"}
ANNOTATIONS |= {"definitions", "deprecated", "readOnly", "writeOnly", "discriminator", "$anchor", "$dynamicAnchor"}
ANNOTATIONS |= {"contentEncoding", "contentMediaType", "contentSchema", "$vocabulary"}


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    names = ((bool, "boolean"), (int | float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next(name for kind, name in names if isinstance(value, kind))


def has_type(value: Any, kinds: Any) -> bool:
    """Whether a value is of the type, or of one of the types, that a schema's `type` names."""
    general = type_of(value)
    is_whole = general == "number" and value == int(value)
    return any(kind == general or (kind == "integer" and is_whole) for kind in _listed(kinds))


def json_key(value: Any) -> str:
    """Equal for values that are equal in JSON: 1 and 1.0, but not 1 and true."""
    return json.dumps(plain_numbers(value), sort_keys=True)


def plain_numbers(value: Any) -> Any:
    """The same JSON value with whole numbers as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: plain_numbers(item) for key, item in value.items()}
    return value


def none_of_pattern(texts: Iterable[str]) -> str:
    """A pattern, anchored on both sides, for every text but these."""
    return f"^{_rest(sorted(set(texts)))}$"


def _rest(texts: list[str]) -> str:
    """A regex for every text but these, as a tree of their characters."""
    heads: dict[str, list[str]] = {}
    for text in texts:
        if text:
            heads.setdefault(text[0], []).append(text[1:])
    others = "".join(map(_escaped, heads))
    first = f"[^{others}]" if heads else r"[\s\S]"
    parts = [rf"{first}[\s\S]*"]
    parts += [f"{_escaped(head)}{_rest(tails)}" for head, tails in heads.items()]
    return f"(?:{'|'.join(parts)})" + ("" if "" in texts else "?")


def _escaped(char: str) -> str:
    if re.fullmatch("[a-zA-Z0-9]", char):
        return char
    return f"\\u{{{ord(char):x}}}"


def _none_of(values: list[Any]) -> Any:
    """The opposite of an enum."""
    kinds = {type_of(value) for value in values}
    if kinds & {"object", "array"}:
        raise NoOppositeError("enum of objects or arrays")
    alternatives: list[Any] = [{"type": [kind for kind in TYPES if kind not in kinds]}]
    if "boolean" in kinds:
        left = [value for value in (False, True) if not any(value is other for other in values)]
        alternatives += [{"enum": left}] if left else []
    if "string" in kinds:
        texts = [value for value in values if isinstance(value, str)]
        alternatives.append({"type": "string", "pattern": none_of_pattern(texts)})
    if "number" in kinds:
        numbers = sorted({value for value in values if type_of(value) == "number"})
        edges: list[Any] = [None, *numbers, None]
        for low, high in itertools.pairwise(edges):
            bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
            alternatives.append({"type": "number", **{key: edge for key, edge in bounds.items() if edge is not None}})
    return {"anyOf": alternatives}


def _value_lists(schema: dict[str, Any]) -> Iterator[list[Any]]:
    if "const" in schema:
        yield [schema["const"]]
    if isinstance(schema.get("enum"), list):
        yield schema["enum"]


def _listed(kinds: Any) -> list[str]:
    return kinds if isinstance(kinds, list) else [kinds]


def _general(kind: str) -> str:
    return "number" if kind == "integer" else kind


def _property(schema: dict[str, Any], name: str) -> Any:
    """What an object's own keywords say of one property."""
    own = schema.get("properties", {}).get(name, _MISSING)
    if own is not _MISSING:
        return own
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _counts_apart(one: dict[str, Any], other: dict[str, Any], low: str, high: str) -> bool:
    infinity = float("inf")
    return bool(one.get(low, 0) > other.get(high, infinity) or other.get(low, 0) > one.get(high, infinity))


def _below(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether every number of `one` is less than every number of `other`."""
    infinity = float("inf")
    high = min(one.get("maximum", infinity), one.get("exclusiveMaximum", infinity))
    low = max(other.get("minimum", -infinity), other.get("exclusiveMinimum", -infinity))
    open_end = one.get("exclusiveMaximum", infinity) == high or other.get("exclusiveMinimum", -infinity) == low
    return bool(high < low or (high == low and open_end and abs(high) != infinity))
