"""JSON Schema's keywords: what the value of each must be, where schemas stand in them, and what none may say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from lmnb.errors import GrammarError
from lmnb.runtime.argument_checks import shown, shown_path
from lmnb.runtime.decimal_bounds import written_multiples
from lmnb.runtime.json_patterns import FORMATS
from lmnb.runtime.json_reading import pointer
from lmnb.runtime.schema_logic import ANNOTATIONS
from lmnb.runtime.schema_references import resolve

Schema = dict[str, Any] | bool
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_OTHER_FORMATS = ("duration", "uri", "uuid")  # as the engine itself knows them
SILENT_FORMATS = ("float", "double", "password", "binary", "path")  # of OpenAPI and pydantic; they limit no value
WHOLE_FORMATS = {  # of OpenAPI and of what writes schemas of Rust's types; the largest ones as far as can be counted
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, min(2**bits, 2**63) - 1) for bits in (8, 16, 32, 64)},
    "int": (-(2**63), 2**63 - 1),
    "uint": (0, 2**63 - 1),
}
DEFINITIONS = ("$defs", "definitions")
MAPS = ("properties", "patternProperties", "dependentSchemas", *DEFINITIONS)
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLES = (
    "items", "additionalProperties", "not", "if", "then", "else", "propertyNames", "contains", "unevaluatedProperties",
    "unevaluatedItems",
)  # fmt: skip
_TOO_MANY = 2**32  # characters, items or properties
_MOST_DIGITS = 10**8  # of multipleOf, as a whole number
_MOST_STATES = 10**5  # remainders that a grammar of multiples tells apart: each takes it some 20 µs to be compiled
_ADVICE = {  # for OpenAPI's own
    "nullable": 'say "type": [..., "null"] instead, or anyOf with {"type": "null"}',
    "components": "put its schemas into $defs, and refer to them as #/$defs/...",
}


def is_schema(value: object) -> bool:
    """Whether it has the form of one."""
    return isinstance(value, dict | bool)


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(name in _TYPES for name in names)


def _is_map(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_schema, value.values()))


def _is_map_of_names(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_schema, value))


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_Check = tuple[Callable[[Any], bool], str]
COUNT: _Check = (_is_count, "a whole number of at least 0")
_NUMBER: _Check = (_is_number, "a number")
_TEXT: _Check = (lambda value: isinstance(value, str), "text")
# Every keyword that is enforced, by a library or through a rewriting, and what its value must be.
KEYWORDS: dict[str, _Check] = {
    "type": (_is_type, f"one or more of {', '.join(_TYPES)}"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    "const": (lambda value: True, "any value"),
    "required": (_is_names, "a list of property names"),
    **dict.fromkeys(SINGLES, (is_schema, "a schema")),
    **dict.fromkeys(MAPS, (_is_map, "an object of schemas")),
    **dict.fromkeys(LISTS, (_is_list, "a list of at least one schema")),
    **dict.fromkeys(("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"), COUNT),
    **dict.fromkeys(("minContains", "maxContains"), COUNT),
    "dependentRequired": (_is_map_of_names, "an object of lists of property names"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(_BOUNDS, _NUMBER),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
}


_PLACES = {**dict.fromkeys(SINGLES, is_schema), **dict.fromkeys(MAPS, _is_map), **dict.fromkeys(LISTS, _is_list)}


def holds_schemas(key: str, value: Any) -> bool:
    """Whether a keyword's value has the form that its schemas must be in."""
    return key in _PLACES and _PLACES[key](value)


def children(node: dict[str, Any]) -> Iterator[tuple[str, Schema]]:
    """Direct subschemas with the path that leads to them."""
    for key, value in node.items():
        if not holds_schemas(key, value):
            continue
        if key in SINGLES:
            yield key, value
        elif key in MAPS:
            yield from ((f"{key}/{pointer(name)}", child) for name, child in value.items())
        else:
            yield from ((f"{key}/{i}", child) for i, child in enumerate(value))


def walk(schema: Schema, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node with its path, parents first."""
    stack = [(path, schema)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, dict):
            yield path, node
            stack.extend(reversed([(f"{path}/{step}", child) for step, child in children(node)]))


def mapped(schema: dict[str, Any], path: str, change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """A copy of a node with each subschema changed, given its path."""
    node = dict(schema)
    for key, value in schema.items():
        if key not in _PLACES:
            continue
        if key in SINGLES:
            node[key] = change(value, f"{path}/{key}")
        elif key in MAPS:
            node[key] = {name: change(child, f"{path}/{key}/{pointer(name)}") for name, child in value.items()}
        else:
            node[key] = [change(child, f"{path}/{key}/{i}") for i, child in enumerate(value)]
    return node


def check_node(root: dict[str, Any], path: str, node: dict[str, Any]) -> None:
    """GrammarError if a keyword of a node is unknown, is malformed, or says what nothing here can count to."""
    for key, value in node.items():
        if (key in ANNOTATIONS and key not in DEFINITIONS) or key.startswith("x-"):
            continue
        if key not in KEYWORDS:
            advice = _ADVICE.get(key, "remove it and check the value afterwards")
            raise GrammarError(f"JSON schema keyword {shown(key)} at {shown_path(path)} cannot be enforced; {advice}")
        is_valid, wanted = KEYWORDS[key]
        if not is_valid(value):
            raise GrammarError(
                f"JSON schema keyword {shown(key)} at {shown_path(path)} must be {wanted}, not {json.dumps(value)[:60]}"
            )
    known_formats = [*FORMATS, *_OTHER_FORMATS, *SILENT_FORMATS, *WHOLE_FORMATS]
    if "format" in node and node["format"] not in known_formats:
        known = ", ".join(sorted(known_formats))
        raise GrammarError(
            f"JSON schema keyword 'format' at {shown_path(path)} cannot be enforced: {shown(node['format'])} is "
            f"none of {known}; "
            "use a pattern"
        )
    dialect = node.get("$schema")
    if isinstance(dialect, str) and not re.match(r"https?://(json-schema\.org|spec\.openapis\.org)/", dialect):
        raise GrammarError(
            f"JSON schema keyword '$schema' at {shown_path(path)} names {shown(dialect)}, whose rules are not known "
            "here; remove it"
        )
    for key in ("enum", "const"):
        if key in node and (wrong := _inexact_number(node[key])) is not None:
            raise GrammarError(
                f"JSON schema keyword {shown(key)} at {shown_path(path)} cannot be enforced: {shown(wrong)} is too "
                "large to be exact"
            )
    _check_bounds(path, node)
    reference = node.get("$ref")
    if reference is not None and resolved(root, reference) is None:
        raise GrammarError(
            f"JSON schema keyword '$ref' at {shown_path(path)} points to {shown(reference)}, which is not in this "
            "schema"
        )


def _inexact_number(value: Any) -> float | None:
    """A number in `value` that grammars, which count in doubles, would take for another one."""
    if isinstance(value, list | dict):
        inner = (_inexact_number(item) for item in (value.values() if isinstance(value, dict) else value))
        return next((found for found in inner if found is not None), None)
    return value if _is_number(value) and not abs(value) <= 2**53 else None


def _check_bounds(path: str, node: dict[str, Any]) -> None:
    """Refuse what the engine gets wrong: it counts in doubles and 64 bits."""
    bounds = {key: node[key] for key in _BOUNDS if key in node}
    for key, value in bounds.items():
        if abs(value) > 2**53 and value not in (2**63 - 1, -(2**63)):
            raise GrammarError(
                f"JSON schema keyword {shown(key)} at {shown_path(path)} cannot be enforced: {shown(value)} is too "
                "large; leave it out"
            )
    for key, value in node.items():
        if KEYWORDS.get(key) is COUNT and value >= _TOO_MANY:
            raise GrammarError(
                f"JSON schema keyword {shown(key)} at {shown_path(path)} cannot be enforced: {shown(value)} is too "
                "large; give a smaller number, or leave it out"
            )
    multiple = node.get("multipleOf", 1)
    if _digits(multiple) > _MOST_DIGITS or _states(multiple) > _MOST_STATES or not _is_counted_exactly(multiple):
        raise GrammarError(
            f"JSON schema keyword 'multipleOf' at {shown_path(path)} cannot be enforced: {shown(multiple)} has too "
            "many digits; give a rounder one, or leave it out and check the value afterwards"
        )


def _digits(multiple: float) -> int:
    """Its digits, as a whole number."""
    return _states(multiple) * int(10 ** max(0, int(Decimal(repr(multiple)).normalize().as_tuple().exponent)))


def _states(multiple: float) -> int:
    """Its digits without zeros behind them, as a whole number."""
    return int("".join(map(str, Decimal(repr(multiple)).normalize().as_tuple().digits)))


def _is_counted_exactly(multiple: float) -> bool:
    """Whether the engine finds its digits: it multiplies, in doubles, until nothing is left behind the point."""
    for value in written_multiples(multiple):
        while value < 2**32 and value != int(value):
            value *= 10
        if value >= 2**32:
            return False
    return True


def check_multiples(nodes: list[tuple[str, dict[str, Any]]]) -> None:
    """Refuse multiples whose least common one is more than the engine, which wraps around, can count to, or has more
    remainders than it tells apart in a reasonable time."""
    given = [node["multipleOf"] for _, node in nodes if "multipleOf" in node]
    multiples = {Decimal(repr(max(written_multiples(multiple)))) for multiple in given}
    places = max((-int(Decimal(repr(multiple)).normalize().as_tuple().exponent) for multiple in given), default=0)
    whole = [int(multiple.scaleb(max(0, places))) for multiple in multiples]
    if math.prod(whole) < 2**32 and math.prod(map(_states, whole)) <= _MOST_STATES:
        return
    path = next(path for path, node in nodes if "multipleOf" in node)
    raise GrammarError(
        f"JSON schema keyword 'multipleOf' at {shown_path(path)} cannot be enforced: the multiples in this schema "
        "are too large together; leave one of them out and check the value afterwards"
    )


def resolved(root: dict[str, Any], reference: str) -> Schema | None:
    """The subschema a pointer leads to, or None."""
    found = resolve(root, reference)
    return found if is_schema(found) else None


def assertions(node: dict[str, Any]) -> set[str]:
    """The keywords of a node that say something about its value."""
    return {key for key in node if key in KEYWORDS and key not in DEFINITIONS}
