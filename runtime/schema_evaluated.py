"""What `unevaluatedProperties` and `unevaluatedItems` leave: which properties and items the schemas that hold for a
value have spoken of. That depends on which alternatives hold, so it is told for each set of them (a world)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lmnb.runtime.schema_logic import SchemaLogic

_MOST_WORLDS = 64
_MOST_OPTIONS = 4
_MOST_READINGS = 10_000


@dataclass(frozen=True)
class World:
    """`schemas`: what must hold for a value to be of this world. The rest: what is evaluated in it."""

    items: bool  # of arrays, not of objects
    schemas: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    num_items: int = 0
    all: bool = False

    def beside(self, other: World) -> World:
        """Where both hold."""
        return World(
            self.items,
            self.schemas + other.schemas,
            self.names + other.names,
            self.patterns + other.patterns,
            max(self.num_items, other.num_items),
            self.all or other.all,
        )

    def holding(self, *schemas: Any) -> World:
        """Where these hold as well, by themselves."""
        return self.beside(World(self.items, schemas))

    def closed(self, rest: Any) -> Any:
        """A schema for this world, where what is not evaluated must be valid by `rest`."""
        limits: dict[str, Any] = {}
        if self.items and not self.all:
            limits = {"prefixItems": [True] * self.num_items, "items": rest} if self.num_items else {"items": rest}
        elif not self.all:
            limits = {"properties": dict.fromkeys(self.names, True), "additionalProperties": rest}
            if self.patterns:
                limits["patternProperties"] = dict.fromkeys(self.patterns, True)
        return {"allOf": [*self.schemas, limits]}


@dataclass
class Evaluated:
    """Reads schemas as they were given. `target` gives what a reference points to, `opposite` what a schema forbids."""

    target: Callable[[str], Any]
    logic: SchemaLogic
    opposite: Callable[[Any], Any]
    _met: list[str] = field(default_factory=list)
    _num_read: int = 0

    def worlds(self, schema: Any, *, items: bool) -> list[World] | None:
        """The worlds that a value of `schema` may be of; None if there are too many, or they cannot be told apart."""
        nothing = World(items)
        if not isinstance(schema, dict):
            return [nothing]
        self._num_read += 1
        if (items and "contains" in schema) or self._num_read > _MOST_READINGS:
            return None
        own = _own_items(schema) if items else _own_properties(schema)
        found: list[World] | None = [own]
        for part in schema.get("allOf", ()):
            found = self._product(found, self.worlds(part, items=items))
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in self._met:
                return None
            self._met.append(reference)
            try:
                found = self._product(found, self.worlds(self.target(reference), items=items))
            finally:
                self._met.pop()
        for key in ("anyOf", "oneOf"):
            if key in schema:
                found = self._product(found, self._alternatives(schema[key], items=items, one=key == "oneOf"))
        if "if" in schema:
            found = self._product(found, self._branches(schema, items=items))
        for name, part in schema.get("dependentSchemas", {}).items():
            without = World(items, ({"properties": {name: False}},))
            there = self.worlds(part, items=items)
            with_it = self._product([World(items, ({"type": "object", "required": [name]}, part))], there)
            found = self._product(found, [without, *with_it] if with_it else None)
        return found

    def _branches(self, schema: dict[str, Any], *, items: bool) -> list[World] | None:
        """The two worlds of `if`."""
        condition, then, other = schema["if"], schema.get("then", True), schema.get("else", True)
        holds = self._product(self.worlds(condition, items=items), self.worlds(then, items=items))
        fails = self.worlds(other, items=items)
        if not holds or not fails:
            return None
        against = self.opposite(condition)
        return [world.holding(condition, then) for world in holds] + [world.holding(against, other) for world in fails]

    def _alternatives(self, options: list[Any], *, items: bool, one: bool) -> list[World] | None:
        """Worlds by which of `options` hold."""
        each = [self.worlds(option, items=items) for option in options]
        if None in each:
            return None
        if all(world == World(items) for worlds in each for world in worlds or ()):
            return [World(items)]  # they speak of other things
        if len(options) > _MOST_OPTIONS and not one:
            return None
        sizes = (1,) if one or self.logic.all_exclude(options) else range(1, len(options) + 1)
        found: list[World] = []
        for size in sizes:
            for chosen in itertools.combinations(range(len(options)), size):
                worlds: list[World] | None = [World(items, tuple(options[i] for i in chosen))]
                for i in chosen:
                    worlds = self._product(worlds, each[i])
                if worlds is None:
                    return None
                found += worlds
        return found

    def _product(self, ones: list[World] | None, others: list[World] | None) -> list[World] | None:
        if ones is None or others is None or len(ones) * len(others) > _MOST_WORLDS:
            return None
        return [one.beside(other) for one in ones for other in others]


def _own_properties(schema: dict[str, Any]) -> World:
    everything = "additionalProperties" in schema or "unevaluatedProperties" in schema
    patterns = tuple(schema.get("patternProperties", ()))
    return World(items=False, names=tuple(schema.get("properties", ())), patterns=patterns, all=everything)


def _own_items(schema: dict[str, Any]) -> World:
    everything = "items" in schema or "unevaluatedItems" in schema
    return World(items=True, num_items=len(schema.get("prefixItems", ())), all=everything)
