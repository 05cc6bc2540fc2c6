"""Objects that list their properties and say nothing of others are closed, as a model would otherwise go on inventing
names; not so where several schemas speak about one value, as closing one of them would contradict the others."""

from __future__ import annotations

from typing import Any

from lmnb.runtime.schema_keywords import DEFINITIONS, KEYWORDS, assertions, children, mapped, resolved, walk
from lmnb.runtime.schema_logic import SchemaLogic

_COMBINING = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("if", "not")
_OF_THE_SAME = {*_COMBINING, "then", "else", "dependentSchemas"}  # their schemas are of the node's own value
_CLOSED = "closed "  # before the references of a closed copy, where it stands beside the open one
_OF_OTHERS = {"additionalProperties", "patternProperties", "minProperties", "unevaluatedProperties"}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy in which such objects have `additionalProperties: false`. References must be plain pointers.

    Every value of the copy is one of `schema`. So what stands in a `oneOf` is left open unless no value of one closed
    alternative can be one of another that is open, as `oneOf` would not allow it.
    """
    schema = _without_lone_parts(schema)
    choices = [node for _, node in walk(schema, "#") if "oneOf" in node]
    marked: dict[str, Any] = {}

    def target(reference: str) -> Any:
        is_closed = reference.startswith(_CLOSED)
        return resolved(marked if is_closed else schema, reference.removeprefix(_CLOSED))

    logic = SchemaLogic(target)
    doubtful: list[dict[str, Any]] = []
    while True:
        met = _met_nodes(schema, doubtful)
        left = {id(node) for node in choices} - met
        if left:
            marked = _closed_but(schema, met, _CLOSED)
            pairs = zip(walk(schema, "#"), walk(marked, "#"), strict=True)
            found = [
                node
                for (_, node), (_, shut) in pairs
                if id(node) in left and _may_overlap(logic, node["oneOf"], shut["oneOf"])
            ]
            if found:
                doubtful += found
                continue
        return _closed_but(schema, met)


def _closed_but(schema: dict[str, Any], met: set[int], mark: str = "") -> dict[str, Any]:
    """A closed copy but for the nodes with these ids. `mark` is put before each reference."""

    def close(node: Any, path: str) -> Any:
        if not isinstance(node, dict):
            return node
        copy = mapped(node, path, close)
        says_nothing = "properties" in node and not _OF_OTHERS & node.keys()
        if says_nothing and id(node) not in met and set(node.get("required", ())) <= node["properties"].keys():
            copy["additionalProperties"] = False
        if mark and "$ref" in node:
            copy["$ref"] = mark + node["$ref"]
        return copy

    result: dict[str, Any] = close(schema, "#")
    return result


def _may_overlap(logic: SchemaLogic, options: list[Any], shut: list[Any]) -> bool:
    """Whether a value of one closed alternative might be one of another only where that is open."""
    if options == shut or logic.have_marks(options):
        return False
    opened = [logic.followed(option) for option in options]
    return not all(
        _needs_another_name(one, opened[j]) or logic.excludes(one, opened[j])
        for i, one in enumerate(map(logic.followed, shut))
        for j, other in enumerate(options)
        if i != j and other != shut[j]
    )


def _needs_another_name(one: Any, other: Any) -> bool:
    """Whether an object of `other` has a name that a closed object has not: of hundreds this is quick to see."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    if one.get("type") != "object" or other.get("type") != "object" or "patternProperties" in one:
        return False
    names = one.get("properties", {}) if one.get("additionalProperties") is False else other.get("required", ())
    return any(name not in names for name in other.get("required", ()))


def open_places(schema: dict[str, Any]) -> list[str]:
    """The paths of objects of a closed schema that list properties, and are open without having said so: neither they
    nor what they are a part of."""
    found: list[str] = []
    seen: set[tuple[int, bool]] = set()
    waiting: list[tuple[str, Any, bool]] = [("#", schema, False)]  # and whether what it is a part of says so
    while waiting:
        path, node, says = waiting.pop(0)
        if not isinstance(node, dict):
            continue
        says = says or bool({"additionalProperties", "unevaluatedProperties"} & node.keys())
        if (id(node), says) in seen:
            continue
        seen.add((id(node), says))
        if "properties" in node and not says and path not in found:
            found.append(path)
        if "$ref" in node:
            waiting.append((node["$ref"], resolved(schema, node["$ref"]), says))
        for step, child in children(node):
            keyword = step.partition("/")[0]
            if keyword not in _CONDITIONS and keyword not in DEFINITIONS:
                waiting.append((f"{path}/{step}", child, says and keyword in _OF_THE_SAME))
    return found


def combines(node: dict[str, Any]) -> bool:
    """Whether several schemas speak about one value here."""
    said = assertions(node)
    together = {"allOf", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties"}
    return bool(said & together) or (len(said) > 1 and bool(said & {"anyOf", "oneOf", "$ref"}))


def _without_lone_parts(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy where the only part of an `allOf` (or `anyOf`, `oneOf`) that stands by itself is in its place, as in
    `{"allOf": [{"$ref": ...}], "description": ...}`."""
    references = [node["$ref"] for _, node in walk(schema, "#") if "$ref" in node]
    if any(f"/{key}/" in reference for reference in references for key in _COMBINING):
        return schema  # they would lead nowhere

    def change(node: Any, path: str) -> Any:
        if not isinstance(node, dict):
            return node
        copy = mapped(node, path, change)
        said = assertions(copy)
        key = next(iter(said)) if len(said) == 1 else ""
        if key in _COMBINING and len(copy[key]) == 1 and isinstance(copy[key][0], dict):
            (part,) = copy.pop(key)
            copy |= {name: value for name, value in part.items() if name in KEYWORDS}
        return copy

    result: dict[str, Any] = change(schema, "#")
    return result


def _met_nodes(root: dict[str, Any], others: list[dict[str, Any]]) -> set[int]:
    """The ids of the nodes that may speak about a value, or a part of one, of which another speaks as well: all that
    is in, or referred to by, a node that combines, or one of `others`; and what may be contained only so often."""
    met: set[int] = set()
    waiting: list[Any] = [node for _, node in walk(root, "#") if combines(node)]
    waiting += [node["contains"] for _, node in walk(root, "#") if "contains" in node and "maxContains" in node]
    waiting += others
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or id(node) in met:
            continue
        met.add(id(node))
        if "$ref" in node:
            waiting.append(resolved(root, node["$ref"]))
        # What a node defines is not said of its value; `walk` goes through all that is.
        inside = {key: value for key, value in node.items() if key not in DEFINITIONS}
        waiting.extend(child for path, child in walk(inside, "#") if path != "#")
    return met
