"""Definitions of a JSON schema that no finite value satisfies, as each would have to hold another of its kind.

Textbook: the unproductive symbols of a grammar, by a least fixed point over what each depends on (Hopcroft, Motwani and
Ullman, Introduction to Automata Theory, 7.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

PREFIX = "#/$defs/"


def endless(definitions: dict[str, Any]) -> set[str]:
    """The names of the definitions without a finite value: those that allow nothing, and those whose values would go on
    for ever. What only other keywords rule out is taken to have one. The whole schema goes by the name "#"."""
    users = defaultdict(set)
    for name, schema in definitions.items():
        for target in _targets(schema):
            users[target].add(name)
    ending: set[str] = set()

    def ends(reference: str) -> bool:
        name = reference.removeprefix(PREFIX)
        return name in ending or name not in definitions

    waiting = set(definitions)
    while waiting:
        name = waiting.pop()
        if name not in ending and ends_if(definitions[name], ends):
            ending.add(name)
            waiting |= users[name]
    return definitions.keys() - ending


def _targets(schema: Any) -> Iterator[str]:
    """Names of the definitions that are referred to anywhere below."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(PREFIX)
        for value in schema.values():
            yield from _targets(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _targets(value)


def ends_if(schema: Any, reference_ends: Callable[[str], bool]) -> bool:
    """Whether the schema has a finite value if those that it refers to have one as `reference_ends` says."""
    if not isinstance(schema, dict):
        return schema is not False
    if "$ref" in schema and not reference_ends(schema["$ref"]):
        return False
    if not all(ends_if(part, reference_ends) for part in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(ends_if(part, reference_ends) for part in schema[key]):
            return False
    return all(ends_if(part, reference_ends) for part in _needed(schema))


def _needed(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas of what each of the values must hold. A value of several possible types need hold nothing."""
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        others = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
        for name in schema.get("required", ()):
            yield properties.get(name, others)
    if schema.get("type") == "array":
        least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
        yield from first[:least]
        if least > len(first):
            yield schema.get("items", True)
