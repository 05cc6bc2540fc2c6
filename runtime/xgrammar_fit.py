"""Which JSON schemas xgrammar truly enforces, at a cost that is worth it."""

from __future__ import annotations

import json
from typing import Any

from lmnb.runtime.schema_keywords import DEFINITIONS, Schema, assertions, resolved

# Beyond this size, in nodes and in characters of names and values, a schema goes to llguidance, which expands nothing
# ahead of time. xgrammar's time and memory grow with more than the square of it: some hundredths of a second here, and
# minutes for ten times as much. Who asks for xgrammar by name gets somewhat more.
_MAX_SIZE = (32, 2000)
_MAX_FORCED_SIZE = (64, 4000)
_MAX_XGRAMMAR_COUNT = 4096
# xgrammar writes all that is forced at once, without any limit: there must be one. In characters.
_MAX_XGRAMMAR_FORCED = 10_000
# What xgrammar enforces beside `type`, by type. Not here although it reads them: minLength and maxLength (it would
# allow raw control characters), minProperties, patternProperties, prefixItems, pattern, format, multipleOf, and
# bounds of `number`.
_XGRAMMAR_BY_TYPE = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": set(),
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
}


def why_unfit(schema: dict[str, Any], nodes: list[tuple[str, dict[str, Any]]], *, by_name: bool) -> str | None:
    """What keeps the schema, whose `nodes` are all of it, from xgrammar; None if nothing does. `by_name`: it was asked
    for, and may take longer to compile."""
    unfit = next((path for path, node in nodes if not _fits_xgrammar(node)), None)
    if unfit is None:
        unfit = _forces_too_much(schema, nodes)
    if unfit is not None:
        return f"does not enforce all of the JSON schema at {unfit}"
    most_nodes, most_characters = _MAX_FORCED_SIZE if by_name else _MAX_SIZE
    if len(nodes) > most_nodes or sum(_num_characters(node) for _, node in nodes) > most_characters:
        return "would take too long to compile the JSON schema that is so large"
    return None


def _num_characters(node: dict[str, Any]) -> int:
    """Of the names and values that the node itself lists."""
    values = [node["const"]] if "const" in node else node.get("enum", ())
    return sum(map(len, node.get("properties", ()))) + sum(len(json.dumps(value)) for value in values)


def _forces_too_much(schema: dict[str, Any], nodes: list[tuple[str, dict[str, Any]]]) -> str | None:
    """The path of a node, be it needed or not, whose value may have too much that is forced."""
    known: dict[int, float] = {}
    try:
        return next((path for path, node in nodes if _most_forced(schema, node, known) > _MAX_XGRAMMAR_FORCED), None)
    except RecursionError:  # of definitions that refer to each other in a long row
        return "#"


def _most_forced(root: dict[str, Any], schema: Schema | None, known: dict[int, float]) -> float:
    """How many characters a value may have to have, at most: infinitely many where it must hold a value like itself.
    Of alternatives the longest counts, as they may begin alike. For schemas that are otherwise fit for xgrammar."""
    if not isinstance(schema, dict):
        return 0
    if id(schema) not in known:
        known[id(schema)] = float("inf")  # met again while it is counted: it holds itself
        values = [schema["const"]] if "const" in schema else schema.get("enum", ())
        count: float = max((len(json.dumps(value)) for value in values), default=4)
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            count += len(json.dumps(name)) + 2 + _most_forced(root, properties.get(name), known)
        if schema.get("minItems", 0) > 0:
            count += schema["minItems"] * (1 + _most_forced(root, schema.get("items"), known))
        others = [*schema.get("anyOf", ()), *([resolved(root, schema["$ref"])] if "$ref" in schema else [])]
        known[id(schema)] = count + max((_most_forced(root, other, known) for other in others), default=0)
    return known[id(schema)]


def _fits_xgrammar(node: dict[str, Any]) -> bool:
    said = assertions(node)
    if said <= {"anyOf"} or said == {"enum"} or said == {"const"}:
        values = [node["const"]] if "const" in node else node.get("enum", [])
        return all(isinstance(v, str | int | None) for v in values)
    if said == {"$ref"}:
        return any(node["$ref"].startswith(f"#/{key}/") for key in DEFINITIONS)
    kind = node.get("type")
    if said == {"type"}:
        return True
    if not isinstance(kind, str) or not said - {"type"} <= _XGRAMMAR_BY_TYPE[kind]:
        return False
    if "required" in said and not set(node["required"]) <= node.get("properties", {}).keys():
        return False  # xgrammar asks for listed properties only
    if node.get("properties") and node.get("additionalProperties", True) is not False:
        return False  # xgrammar keeps listed names apart from others byte by byte, and so breaks characters
    counts = [node[key] for key in ("minItems", "maxItems") if key in node]
    bounds = [node[key] for key in _XGRAMMAR_BY_TYPE["integer"] if key in node]
    return all(count <= _MAX_XGRAMMAR_COUNT for count in counts) and all(
        isinstance(bound, int) and abs(bound) < 2**53 for bound in bounds
    )
