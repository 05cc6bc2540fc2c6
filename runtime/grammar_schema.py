"""Reads a JSON schema and says which engine enforces all of it, or names the keyword that none does.

xgrammar has the cheaper masks but ignores keywords in silence, so a schema goes there only if each of its nodes has
a shape listed in `xgrammar_fit`; llguidance refuses what it cannot do, and takes the rest. Knows neither library.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from lmnb.errors import GrammarError
from lmnb.runtime.argument_checks import shown_path
from lmnb.runtime.json_patterns import FORMATS, pattern_to_rust
from lmnb.runtime.json_reading import LossError, WholeDecoder
from lmnb.runtime.schema_closing import closed, combines, open_places
from lmnb.runtime.schema_keywords import (
    COUNT,
    DEFINITIONS,
    KEYWORDS,
    SILENT_FORMATS,
    WHOLE_FORMATS,
    check_multiples,
    check_node,
    children,
    holds_schemas,
    mapped,
    walk,
)
from lmnb.runtime.schema_lowering import SchemaLowering
from lmnb.runtime.schema_references import with_plain_references
from lmnb.runtime.xgrammar_fit import why_unfit

_LEAST = -(2**63) + 1024  # the least bound that the engine can negate
_MOST_NAME = 1000  # characters of a listed name that others are told from


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """A checked schema, its objects closed (see `plan_schema`), and the engine that enforces it.

    `short_escapes`: strings must not be written with codes (`\\u0061`). A listed name could else be written as one that
    is not listed, and its value would be taken for a further property's. `open_at`: paths of objects that list
    properties and could not be closed.
    """

    schema: dict[str, Any]
    engine: Literal["xgrammar", "llguidance"]
    short_escapes: bool = False
    open_at: tuple[str, ...] = ()


def plan_schema(source: str, engine: str = "auto") -> SchemaPlan:
    """Check the JSON schema in `source`. GrammarError names the keyword that cannot be enforced, and its path.
    `engine`: the one that must enforce it, unless "auto".

    An object that lists `properties` and says nothing of others gets `additionalProperties: false`, as a model
    would otherwise go on inventing keys; not so where several schemas speak about one value (`allOf` and the like),
    as closing one of them would contradict another.
    """
    try:
        schema = with_plain_references(_in_new_words(_parse(source)), children)
        for path, node in walk(schema, "#"):
            check_node(schema, path, node)
        schema = _without_needless_types(schema)
        schema = closed(schema)
        open_at = tuple(open_places(schema))
        nodes = list(walk(schema, "#"))
        unfit = why_unfit(schema, nodes, by_name=engine == "xgrammar")
        fits = engine != "llguidance" and unfit is None
        if engine == "xgrammar" and not fits:
            raise GrammarError(f"xgrammar {unfit}; leave grammar_backend out")
        combined = any(_meets(node) for _, node in nodes)
        if combined:
            check_multiples(nodes)
        if not fits:
            schema = with_plain_patterns(SchemaLowering(schema, mapped, combined=combined).lowered())
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply; flatten it with $defs") from None
    if fits:
        return SchemaPlan(schema, "xgrammar", open_at=open_at)
    return SchemaPlan(schema, "llguidance", short_escapes=_needs_short_escapes(schema), open_at=open_at)


def _needs_short_escapes(schema: dict[str, Any]) -> bool:
    """See `SchemaPlan`. GrammarError for names that cannot be told from others."""
    place = None
    for path, node in walk(schema, "#"):
        if not _tells_names_apart(node):
            continue
        longest = max(map(len, [*node.get("properties", ()), *node.get("required", ())]), default=0)
        if longest > _MOST_NAME:
            raise GrammarError(
                f"JSON schema at {shown_path(path)} cannot be enforced: a name of {longest} characters, where "
                "further names "
                f"are allowed, is too long; say additionalProperties: false, or at most {_MOST_NAME} characters"
            )
        place = place or path
    if place is not None and (text := _coded_text(schema)) is not None:
        raise GrammarError(
            f"JSON schema at {shown_path(place)} cannot be enforced: with {text[:40]!r} in the schema, names could "
            "be written in "
            "several ways; say additionalProperties: false, or leave out control characters"
        )
    return place is not None


def subschemas(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every node with its path, parents first. Definitions come along, so that each node's references resolve."""
    definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
    return [(path, {**definitions, **node}) for path, node in walk(schema, "#")]


def _parse(source: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise GrammarError(f"the JSON schema is not valid JSON: {constant} is not a JSON number; leave it out")

    try:
        schema = json.loads(source, parse_constant=refuse, cls=WholeDecoder)
    except LossError as error:
        raise GrammarError(f"in the JSON schema, {error}") from None
    except json.JSONDecodeError as e:
        raise GrammarError(f"the JSON schema is not valid JSON: {e.msg} (line {e.lineno}, column {e.colno})") from None
    if "\\ud" in source.lower() and (half := re.search("[\ud800-\udfff]", json.dumps(schema, ensure_ascii=False))):
        raise GrammarError(
            f"the JSON schema holds half a surrogate pair, {half[0]!r}, which is no character; remove it"
        )
    if schema is True:
        return {}
    if schema is False:
        raise GrammarError(
            'the JSON schema is false, which allows no value; give an object, such as {"type": "string"}'
        )
    if not isinstance(schema, dict):
        raise GrammarError(
            f'a JSON schema is an object, not {json.dumps(schema)[:40]}; give one, such as {{"type": "string"}}'
        )
    return schema


def _in_new_words(schema: Any) -> Any:
    """A copy in which older drafts' `dependencies`, and lists of `items`, have their later names, and counts are
    integers."""
    old = schema.get("$schema")
    lists = isinstance(old, str) and re.search(r"draft-0[3467]|2019-09", old) is not None
    return _renewed(schema, "#", lists)


def _renewed(schema: Any, path: str, lists: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    node: dict[str, Any] = {
        key: int(value) if KEYWORDS.get(key) is COUNT and COUNT[0](value) else value for key, value in schema.items()
    }
    if isinstance(node.get("dependencies"), dict):
        for name, value in node.pop("dependencies").items():
            key = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
            node[key] = {**node.get(key, {}), name: value}
    if lists and isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    elif lists:
        node.pop("additionalItems", None)  # says nothing beside one schema for all items
    valid = {key: value for key, value in node.items() if holds_schemas(key, value)}
    changed = mapped(valid, path, lambda child, at: _renewed(child, at, lists))
    return {key: changed.get(key, value) for key, value in node.items()}


def _meets(node: dict[str, Any]) -> bool:
    """Whether several schemas may speak about one value here, or about one part of it."""
    inside = {"contains", "patternProperties", "oneOf", "unevaluatedItems", "propertyNames"}
    return combines(node) or bool(inside & node.keys())


_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def _without_needless_types(schema: Any, path: str = "#") -> Any:
    """A copy without the `type` of an `enum` or `const` whose values all have it, as pydantic writes it."""
    if not isinstance(schema, dict):
        return schema
    node = mapped(schema, path, _without_needless_types)
    values = [node["const"]] if "const" in node else node.get("enum", ())
    kinds = node.get("type")
    if values and isinstance(kinds, str) and all(_has_type(value, kinds) for value in values):
        del node["type"]
    return node


def _has_type(value: Any, kind: str) -> bool:
    return isinstance(value, _PYTHON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def with_plain_patterns(schema: Any, path: str = "#") -> Any:
    """A copy in which every `pattern`, `patternProperties` and most `format`s are regexes of the engine's dialect."""
    if not isinstance(schema, dict):
        return schema
    node = mapped(schema, path, with_plain_patterns)
    if "patternProperties" in node:
        place = f"{path}/patternProperties"
        node["patternProperties"] = {
            _plain_pattern(name, place): child for name, child in node["patternProperties"].items()
        }
    if "pattern" in node:
        node["pattern"] = _plain_pattern(node["pattern"], path)
    if node.get("format") in SILENT_FORMATS:
        del node["format"]
    elif node.get("format") in WHOLE_FORMATS:
        low, high = WHOLE_FORMATS[node.pop("format")]
        node["allOf"] = [*node.get("allOf", ()), {"minimum": max(low, _LEAST), "maximum": high}]
    for key in ("minimum", "exclusiveMinimum"):
        if node.get(key) == -(2**63):
            node[key] = _LEAST
    if node.get("format") in FORMATS:
        pattern, limit = FORMATS[node.pop("format")]
        if limit is not None:
            node["maxLength"] = min(limit, node.get("maxLength", limit))
        patterns = [{"pattern": f"^(?:{pattern})$"}]
        if "pattern" in node:
            node["allOf"] = [*node.get("allOf", ()), *patterns]
        else:
            node.update(patterns[0])
    return node


def _plain_pattern(pattern: str, path: str) -> str:
    try:
        return pattern_to_rust(pattern)
    except GrammarError as error:
        raise GrammarError(f"JSON schema at {shown_path(path)} cannot be enforced: {error}") from None


_CODED = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # characters that JSON has only codes for


def _tells_names_apart(node: dict[str, Any]) -> bool:
    """Whether further properties may be of other values than those that are named."""
    named = {"properties", "patternProperties", "required"} & node.keys()
    return bool(named) and node.get("additionalProperties", True) is not False


def _coded_text(value: Any) -> str | None:
    """A text in `value` that cannot be written without a code."""
    if isinstance(value, str):
        return value if _CODED.search(value) else None
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in inner if (found := _coded_text(each)) is not None), None)
