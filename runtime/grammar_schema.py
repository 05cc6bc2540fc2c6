"""Reads a JSON schema and says which engine enforces all of it, or names the keyword that none does.

xgrammar has the cheaper masks but ignores keywords in silence, so a schema goes there only if each of its nodes has
a shape listed here; llguidance refuses what it cannot do, and takes the rest. Knows neither library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

from lmnb.errors import GrammarError
from lmnb.runtime.json_patterns import FORMATS, pattern_to_rust

Schema = dict[str, Any] | bool

# Beyond this size, in nodes and in characters of names and values, a schema goes to llguidance, which expands nothing
# ahead of time. xgrammar's time and memory grow with more than the square of it: some hundredths of a second here, and
# minutes for ten times as much. Who asks for xgrammar by name gets somewhat more.
_MAX_XGRAMMAR_SIZE = (32, 2000)
_MAX_FORCED_SIZE = (64, 4000)
_MAX_XGRAMMAR_COUNT = 4096
# xgrammar writes all that is forced at once, without any limit: there must be one. In characters.
_MAX_XGRAMMAR_FORCED = 10_000

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_ANNOTATIONS = {"$schema", "$id", "$comment", "title", "description", "default", "example", "examples"}
_ANNOTATIONS |= {"deprecated", "readOnly", "writeOnly", "discriminator"}
_OTHER_FORMATS = ("duration", "uri", "uuid")  # as the engine itself knows them
_DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties", *_DEFINITIONS)
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties")


def _is_schema(value: object) -> bool:
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
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

_Check = tuple[Callable[[Any], bool], str]
_COUNT: _Check = (_is_count, "a whole number of at least 0")
_NUMBER: _Check = (_is_number, "a number")
_TEXT: _Check = (lambda value: isinstance(value, str), "text")

# Every keyword that one of the engines enforces, and what its value must be.
_KEYWORDS: dict[str, _Check] = {
    "type": (_is_type, f"one or more of {', '.join(_TYPES)}"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    "const": (lambda value: True, "any value"),
    "required": (_is_names, "a list of property names"),
    **dict.fromkeys(_SINGLES, (_is_schema, "a schema")),
    **dict.fromkeys(_MAPS, (_is_map, "an object of schemas")),
    **dict.fromkeys(_LISTS, (_is_list, "a list of at least one schema")),
    **dict.fromkeys(("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"), _COUNT),
    **dict.fromkeys(_BOUNDS, _NUMBER),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
}

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


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """A checked schema, its objects closed (see `plan_schema`), and the engine that enforces it."""

    schema: dict[str, Any]
    engine: Literal["xgrammar", "llguidance"]


def plan_schema(source: str, engine: str = "auto") -> SchemaPlan:
    """Check the JSON schema in `source`. GrammarError names the keyword that cannot be enforced, and its path.
    `engine`: the one that must enforce it, unless "auto".

    An object that lists `properties` and says nothing of others gets `additionalProperties: false`, as a model
    would otherwise go on inventing keys; not so in schemas whose parts combine on one value (`allOf` and the
    like), where closing one part would contradict another.
    """
    try:
        schema = _parse(source)
        nodes = list(_walk(schema, "#"))
        for path, node in nodes:
            _check_node(schema, path, node)
        schema = _without_needless_types(schema)
        nodes = list(_walk(schema, "#"))
        if not any(_combines(node) for _, node in nodes):
            schema = _closed(schema)
            nodes = list(_walk(schema, "#"))
        unfit = next((path for path, node in nodes if not _fits_xgrammar(node)), None)
        if unfit is None and _most_forced(schema, schema, {}) > _MAX_XGRAMMAR_FORCED:
            unfit = "#"
        most_nodes, most_characters = _MAX_FORCED_SIZE if engine == "xgrammar" else _MAX_XGRAMMAR_SIZE
        small = len(nodes) <= most_nodes and sum(_num_characters(node) for _, node in nodes) <= most_characters
        fits = engine != "llguidance" and small and unfit is None
        if engine == "xgrammar" and not fits:
            where = f"at {unfit}" if unfit is not None else "that is so large"
            why = "does not enforce all of" if unfit is not None else "would take too long to compile"
            raise GrammarError(f"xgrammar {why} the JSON schema {where}; leave grammar_backend out")
        if not fits:
            schema = with_plain_patterns(schema)
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply; flatten it with $defs") from None
    return SchemaPlan(schema, "xgrammar" if fits else "llguidance")


def subschemas(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every node with its path, parents first. Definitions come along, so that each node's references resolve."""
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    return [(path, {**definitions, **node}) for path, node in _walk(schema, "#")]


def _parse(source: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise GrammarError(f"the JSON schema is not valid JSON: {constant} is not a JSON number")

    try:
        schema = json.loads(source, parse_constant=refuse)
    except json.JSONDecodeError as e:
        raise GrammarError(f"the JSON schema is not valid JSON: {e.msg} (line {e.lineno}, column {e.colno})") from None
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GrammarError(f"a JSON schema is an object, not {json.dumps(schema)[:40]}; wrap it in {{...}}")
    return schema


def _children(node: dict[str, Any]) -> Iterator[tuple[str, Schema]]:
    """Direct subschemas with the path that leads to them."""
    for key in _SINGLES:
        if _is_schema(node.get(key)):
            yield key, node[key]
    for key in _MAPS:
        if _is_map(node.get(key)):
            yield from ((f"{key}/{_pointer(name)}", child) for name, child in node[key].items())
    for key in _LISTS:
        if _is_list(node.get(key)):
            yield from ((f"{key}/{i}", child) for i, child in enumerate(node[key]))


def _walk(schema: Schema, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    stack = [(path, schema)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, dict):
            yield path, node
            stack.extend(reversed([(f"{path}/{step}", child) for step, child in _children(node)]))


def _check_node(root: dict[str, Any], path: str, node: dict[str, Any]) -> None:
    for key, value in node.items():
        if key in _ANNOTATIONS or key.startswith("x-"):
            continue
        if key not in _KEYWORDS:
            raise GrammarError(
                f"JSON schema keyword {key!r} at {path} cannot be enforced; remove it and check the value afterwards"
            )
        is_valid, wanted = _KEYWORDS[key]
        if not is_valid(value):
            raise GrammarError(f"JSON schema keyword {key!r} at {path} must be {wanted}, not {json.dumps(value)[:60]}")
    if "format" in node and node["format"] not in FORMATS and node["format"] not in _OTHER_FORMATS:
        known = ", ".join(sorted([*FORMATS, *_OTHER_FORMATS]))
        raise GrammarError(
            f"JSON schema keyword 'format' at {path} cannot be enforced: {node['format']!r} is none of {known}; "
            "use a pattern"
        )
    _check_bounds(path, node)
    reference = node.get("$ref")
    if reference is not None and _resolve(root, reference) is None:
        raise GrammarError(f"JSON schema keyword '$ref' at {path} points to {reference!r}, which is not in this schema")


def _check_bounds(path: str, node: dict[str, Any]) -> None:
    """Refuse what the engine gets wrong: it counts in doubles and 64 bits, and forgets that a whole bound is exclusive
    where the other one lies before the next whole number, away from zero (0 < x <= 0.5)."""
    bounds = {key: node[key] for key in _BOUNDS if key in node}
    for key, value in bounds.items():
        if abs(value) > 2**53 and value not in (2**63 - 1, -(2**63)):
            raise GrammarError(
                f"JSON schema keyword {key!r} at {path} cannot be enforced: {value} is too large; leave it out"
            )
    if node.get("type") == "integer":
        return
    low, high = bounds.get("exclusiveMinimum"), bounds.get("exclusiveMaximum")
    above = min((bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds), default=None)
    below = max((bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds), default=None)
    for key, bound, other in (("exclusiveMinimum", low, above), ("exclusiveMaximum", high, below)):
        if (
            bound is not None
            and other is not None
            and bound == int(bound)
            and other != int(other)
            and int(other) == bound
        ):
            raise GrammarError(
                f"JSON schema keyword {key!r} at {path} cannot be enforced: {bound} beside {other} as the other bound; "
                "name the outermost value that is allowed, by minimum or maximum"
            )


def _resolve(root: dict[str, Any], reference: str) -> Schema | None:
    """The subschema a local reference (`#`, `#/a/b`) points to, or None."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            return None
    return found if _is_schema(found) else None


def _assertions(node: dict[str, Any]) -> set[str]:
    """The keywords of a node that say something about its value."""
    return {key for key in node if key in _KEYWORDS and key not in _DEFINITIONS}


def _combines(node: dict[str, Any]) -> bool:
    """Whether several schemas speak about one value here."""
    said = _assertions(node)
    return "allOf" in said or (len(said) > 1 and bool(said & {"anyOf", "oneOf", "$ref"}))


_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def _without_needless_types(schema: Any) -> Any:
    """A copy without the `type` of an `enum` or `const` whose values all have it, as pydantic writes it."""
    if not isinstance(schema, dict):
        return schema
    node = _mapped(schema, _without_needless_types)
    values = [node["const"]] if "const" in node else node.get("enum", ())
    kinds = node.get("type")
    if values and isinstance(kinds, str) and all(_has_type(value, kinds) for value in values):
        del node["type"]
    return node


def _has_type(value: Any, kind: str) -> bool:
    return isinstance(value, _PYTHON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _mapped(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of a node with each subschema changed."""
    node = dict(schema)
    for key in _SINGLES:
        if key in node:
            node[key] = change(node[key])
    for key in _MAPS:
        if key in node:
            node[key] = {name: change(child) for name, child in node[key].items()}
    for key in _LISTS:
        if key in node:
            node[key] = [change(child) for child in node[key]]
    return node


def _closed(schema: Any) -> Any:
    """A copy in which objects that list their properties have no others."""
    if not isinstance(schema, dict):
        return schema
    node = _mapped(schema, _closed)
    says_more = {"additionalProperties", "patternProperties", "minProperties"} & node.keys()
    if "properties" in node and not says_more and set(node.get("required", ())) <= node["properties"].keys():
        node["additionalProperties"] = False
    return node


def with_plain_patterns(schema: Any, path: str = "#") -> Any:
    """A copy in which every `pattern`, `patternProperties` and most `format`s are regexes of the engine's dialect,
    and counts are integers."""
    if not isinstance(schema, dict):
        return schema
    node: dict[str, Any] = {key: int(value) if _KEYWORDS.get(key) is _COUNT else value for key, value in schema.items()}
    for key in _SINGLES:
        if key in node:
            node[key] = with_plain_patterns(node[key], f"{path}/{key}")
    for key in _MAPS:
        if key in node:
            node[key] = {
                _plain_pattern(name, f"{path}/{key}") if key == "patternProperties" else name: with_plain_patterns(
                    child, f"{path}/{key}/{_pointer(name)}"
                )
                for name, child in node[key].items()
            }
    for key in _LISTS:
        if key in node:
            node[key] = [with_plain_patterns(child, f"{path}/{key}/{i}") for i, child in enumerate(node[key])]
    if "pattern" in node:
        node["pattern"] = _plain_pattern(node["pattern"], path)
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
        raise GrammarError(f"JSON schema at {path} cannot be enforced: {error}") from None


def _num_characters(node: dict[str, Any]) -> int:
    """Of the names and values that the node itself lists."""
    values = [node["const"]] if "const" in node else node.get("enum", ())
    return sum(map(len, node.get("properties", ()))) + sum(len(json.dumps(value)) for value in values)


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
        others = [*schema.get("anyOf", ()), *([_resolve(root, schema["$ref"])] if "$ref" in schema else [])]
        known[id(schema)] = count + max((_most_forced(root, other, known) for other in others), default=0)
    return known[id(schema)]


def _fits_xgrammar(node: dict[str, Any]) -> bool:
    said = _assertions(node)
    if said <= {"anyOf"} or said == {"enum"} or said == {"const"}:
        values = [node["const"]] if "const" in node else node.get("enum", [])
        return all(isinstance(v, str | int | None) for v in values)
    if said == {"$ref"}:
        return any(node["$ref"].startswith(f"#/{key}/") for key in _DEFINITIONS)
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


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
