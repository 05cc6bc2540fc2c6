"""Keywords of JSON Schema that no grammar library knows, in the words of those that it does.

Each rewriting means exactly the same values; where there is none (or only one that grows too large), GrammarError names
the keyword and its place. References must be plain pointers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lmnb.errors import GrammarError
from lmnb.runtime.argument_checks import shown_path
from lmnb.runtime.decimal_bounds import BOUNDS, enforceable_bounds, few_multiples, written_multiples
from lmnb.runtime.json_patterns import FORMATS
from lmnb.runtime.schema_endless import endless, ends_if
from lmnb.runtime.schema_evaluated import Evaluated
from lmnb.runtime.schema_logic import ANNOTATIONS, TYPES, NoOppositeError, SchemaLogic, plain_numbers
from lmnb.runtime.schema_references import resolve

_MOST_ALTERNATIVES = 64
_MOST_ROWS = 2000  # of values that an array may be, where each is written out
_MOST_ITEMS = 8  # of an array whose items are told apart

Node = dict[str, Any]


class SchemaLowering:
    """Rewrites one schema. `children` changes a node's direct subschemas: (node, path, change) -> a copy. `combined`:
    whether several nodes may speak of one value somewhere."""

    def __init__(
        self, root: Node, children: Callable[[Node, str, Callable[[Any, str], Any]], Node], *, combined: bool
    ) -> None:
        self._root = root
        self._combined = combined
        self._children = children
        self._logic = SchemaLogic(self._target)
        raw = partial(resolve, root)
        self._evaluated = Evaluated(raw, SchemaLogic(raw), self._opposite)
        self._lowered: dict[str, Any] = {}
        self._open: set[str] = set()
        self._names: dict[str, str] = {}  # of what is referred to, by pointer
        self._never: set[str] = set()  # pointers to what allows nothing

    def lowered(self) -> Node:
        """The whole schema. All that is referred to becomes a definition, as rewriting moves what it stood in."""
        lowered = self._lower(self._root, "#")
        while True:
            self._names.clear()
            result = self._moved(lowered, "#")
            definitions: dict[str, Any] = {}
            while len(definitions) < len(self._names):
                for pointer, name in list(self._names.items())[len(definitions) :]:
                    definitions[name] = self._moved(self._target(pointer), pointer)
            without = endless({**definitions, "#": result})
            never = {pointer for pointer, name in self._names.items() if name in without}
            if "#" in without and ends_if(result, lambda _: True):
                place = min(never, key=len, default="#")
                raise GrammarError(
                    f"JSON schema at {shown_path(place)} is satisfied by no value that ever ends, and the schema "
                    "needs one; let "
                    "recursion end, by something optional or another alternative"
                )
            self._never |= never
            if not never:
                break
        if isinstance(result, bool):
            return {} if result else {"allOf": [False]}
        return {**result, "$defs": definitions} if definitions else result

    def _moved(self, schema: Any, path: str) -> Any:
        """A copy whose references are to the definitions, with bounds that are enforced, and without alternatives that
        allow nothing."""
        if not isinstance(schema, dict):
            return schema
        node = self._children(schema, path, self._moved)
        if "$ref" in node:
            if node["$ref"] in self._never:
                return False
            node["$ref"] = self._definition(node["$ref"])
        if not self._combined and (values := few_multiples(node)):
            return {"enum": values}
        multiples = written_multiples(node.get("multipleOf", 1))
        if len(multiples) > 1:
            del node["multipleOf"]
            node = _with_parts(node, [{"anyOf": [{"multipleOf": multiple} for multiple in multiples]}])
        bounds = enforceable_bounds(node, meets_others=self._combined)
        if bounds is not None:
            node = _with_parts({key: value for key, value in node.items() if key not in BOUNDS}, [bounds])
        if "anyOf" in node:
            node["anyOf"] = [part for part in node["anyOf"] if part is not False]
            if not node["anyOf"]:
                return False
            if any(part is True or part == {} for part in node["anyOf"]):
                del node["anyOf"]
        if "allOf" in node:
            if False in node["allOf"]:
                return False
            node["allOf"] = [part for part in node["allOf"] if part is not True and part != {}]
            if not node["allOf"]:
                del node["allOf"]
        return node

    def _definition(self, pointer: str) -> str:
        """Where what `pointer` leads to will be."""
        if pointer == "#":
            return pointer
        if pointer not in self._names:
            name = pointer.rpartition("/")[2]
            if not re.fullmatch(r"[\w-]+", name, re.ASCII) or name in self._names.values():
                name = f"definition {len(self._names)}".replace(" ", "_")
            self._names[pointer] = name
        return f"#/$defs/{self._names[pointer]}"

    def _opposite(self, schema: Any) -> Any:
        return self._logic.opposite(self._lower(schema, "#"))

    def _target(self, reference: str) -> Any:
        """What a reference points to, rewritten; as it is while it is being rewritten."""
        found = resolve(self._root, reference)
        if reference in self._open:
            return found
        if reference not in self._lowered:
            self._open.add(reference)
            try:
                self._lowered[reference] = self._lower(found, reference)
            finally:
                self._open.discard(reference)
        return self._lowered[reference]

    def _lower(self, schema: Any, path: str) -> Any:
        if not isinstance(schema, dict):
            return schema
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            schema = self._with_evaluated(schema, path)
        said = {key: value for key, value in schema.items() if key not in ANNOTATIONS and not key.startswith("x-")}
        node = self._children(said, path, self._lower)
        for key in ("enum", "const"):
            if key in node:
                node[key] = plain_numbers(node[key])
        parts: list[Any] = []
        for keywords, rule in _RULES:
            if any(key in node for key in keywords):
                given = {key: node.pop(key) for key in keywords if key in node}
                try:
                    parts.extend(rule(self, node, given, path))
                except NoOppositeError as error:
                    reason = f"the opposite of its {error.args[0]} has no words in JSON Schema"
                    raise self._refusal(next(iter(given)), path, reason) from None
        if "oneOf" in node:
            self._lower_one_of(node)
        return _with_parts(node, parts)

    def _with_evaluated(self, schema: Node, path: str) -> Node:
        """The same without `unevaluatedProperties` and `unevaluatedItems`."""
        node = dict(schema)
        parts: list[Any] = []
        for key in ("unevaluatedProperties", "unevaluatedItems"):
            rest = node.pop(key, True)
            if rest in (True, {}):
                continue
            try:
                worlds = self._evaluated.worlds(node, items=key == "unevaluatedItems")
            except NoOppositeError:
                worlds = None
            if worlds is None:
                raise self._refusal(key, path, "what it depends on is too involved")
            if not all(world.all for world in worlds):
                parts.append({"anyOf": [world.closed(rest) for world in worlds]})
        return _with_parts(node, parts)

    def _refusal(self, keyword: str, path: str, reason: str) -> GrammarError:
        return GrammarError(
            f"JSON schema keyword {keyword!r} at {shown_path(path)} cannot be enforced: {reason}; remove it and "
            "check the value "
            "afterwards"
        )

    def _lower_one_of(self, node: Node) -> None:
        options = node["oneOf"]
        if self._logic.all_exclude(options):
            exact = options
        elif len(options) <= 4:
            try:
                others = [[other for j, other in enumerate(options) if j != i] for i in range(len(options))]
                exact = [
                    {"allOf": [option, *map(self._logic.opposite, rest)]}
                    for option, rest in zip(options, others, strict=True)
                ]
            except NoOppositeError:
                return  # the library may still know better
        else:
            return
        del node["oneOf"]
        if "anyOf" in node:
            node["allOf"] = [*node.get("allOf", ()), {"anyOf": exact}]
        else:
            node["anyOf"] = exact

    def _not(self, node: Node, given: Node, path: str) -> Iterator[Any]:
        yield self._logic.opposite(given["not"])

    def _if(self, node: Node, given: Node, path: str) -> Iterator[Any]:
        then, other = given.get("then", True), given.get("else", True)
        if "if" not in given or (then in (True, {}) and other in (True, {})):
            return
        condition = given["if"]
        if other in (True, {}):
            yield {"anyOf": [then, self._logic.opposite(condition)]}
        elif then in (True, {}):
            yield {"anyOf": [condition, other]}
        else:
            yield {
                "anyOf": [{"allOf": [condition, then]}, {"allOf": [self._logic.opposite(condition), other]}],
            }

    def _dependent(self, node: Node, given: Node, path: str) -> Iterator[Any]:
        wanted: dict[str, list[Any]] = {}
        for name, names in given.get("dependentRequired", {}).items():
            if names:
                wanted.setdefault(name, []).append({"required": names})
        for name, schema in given.get("dependentSchemas", {}).items():
            wanted.setdefault(name, []).append(schema)
        for name, value in given.get("dependencies", {}).items():
            if value != []:
                wanted.setdefault(name, []).append({"required": value} if isinstance(value, list) else value)
        if 2 ** len(wanted) > _MOST_ALTERNATIVES:
            raise self._refusal(next(iter(given)), path, f"it has {len(wanted)} names, and at most 6 are accepted")
        for name, schemas in wanted.items():
            if name in node.get("required", ()) and node.get("type") == "object":
                yield from schemas
            else:
                there = {"allOf": schemas} if len(schemas) > 1 else schemas[0]
                yield {"anyOf": [{"properties": {name: False}}, there]}

    def _property_names(self, node: Node, given: Node, path: str) -> Iterator[Any]:
        names = given["propertyNames"]
        if names in (True, {}, {"type": "string"}):
            return
        values = [] if "string" not in self._logic.types(names) else self._logic.values(names)
        if values is not None:
            texts = [value for value in values if isinstance(value, str)]
            others = dict.fromkeys(texts, True)
            yield {"allOf": [{"properties": others, "additionalProperties": False}]}
            return
        pattern = _name_pattern(names)
        if pattern is None:
            raise self._refusal(
                "propertyNames", path, "it may hold an enum, or one of pattern, minLength and maxLength, and format"
            )
        rest = node.get("additionalProperties", True)
        if "patternProperties" in node or (node.get("properties") and rest not in (True, {}, False)):
            raise self._refusal("propertyNames", path, "not beside what other keywords say of further names")
        if rest is False or rest in (True, {}):
            rest = True
        else:
            node.pop("additionalProperties")
        # Apart, since what `properties` lists beside it would be allowed by any name.
        yield {"allOf": [{"patternProperties": {pattern: rest}, "additionalProperties": False}]}

    def _contains(self, node: Node, given: Node, path: str) -> Iterator[Any]:
        if "contains" not in given:
            return
        schema, low = given["contains"], int(given.get("minContains", 1))
        high = None if "maxContains" not in given else int(given["maxContains"])
        others = {"type": [kind for kind in TYPES if kind != "array"]}
        if low == 0 and (high is None or schema is False):
            return
        if schema is False or (high is not None and high < low):
            yield {"allOf": [others]}
            return
        if high == 0:
            yield {"allOf": [{"items": self._logic.opposite(schema)}]}
            return
        if schema in (True, {}):
            yield {"allOf": [{"minItems": low, **({} if high is None else {"maxItems": high})}]}
            return
        most = node.get("maxItems", len(node.get("prefixItems", ())) if node.get("items") is False else None)
        if most is None or most > _MOST_ITEMS:
            raise self._refusal("contains", path, f"the array may be long; give it maxItems of at most {_MOST_ITEMS}")
        most = int(most)
        other = self._logic.opposite(schema) if high is not None else True
        rows = [
            row
            for row in itertools.product((True, False), repeat=most)
            if sum(row) == low or (high is not None and low <= sum(row) <= high)
        ]
        alternatives: list[Any] = []
        if high is None:  # the others may hold too: it is enough to say which are the first
            for row in rows:
                last = max((i for i, holds in enumerate(row) if holds), default=-1)
                items = [schema if holds else True for holds in row[: last + 1]]
                alternatives.append({"type": "array", "prefixItems": items, "minItems": last + 1})
        else:
            for length in range(low, most + 1):
                for row in itertools.product((True, False), repeat=length):
                    if low <= sum(row) <= high:
                        items = [schema if holds else other for holds in row]
                        shape = {"prefixItems": items} if items else {}
                        alternatives.append({"type": "array", **shape, "minItems": length, "maxItems": length})
        if len(alternatives) > 4 * _MOST_ALTERNATIVES:
            raise self._refusal("maxContains", path, "the array may be long; give it a smaller maxItems")
        yield {"anyOf": [others, *alternatives]}

    def _unique(self, node: Node, given: Node, path: str) -> Iterator[Any]:
        if not given["uniqueItems"] or node.get("maxItems", 2) <= 1:
            return
        if node.get("items") is False and len(node.get("prefixItems", ())) <= 1:
            return
        low, high = int(node.get("minItems", 0)), node.get("maxItems")
        values = None if "prefixItems" in node else self._logic.values(node.get("items", True))
        if values is None:
            raise self._refusal("uniqueItems", path, "its items must be an enum")
        most = len(values) if high is None else min(int(high), len(values))
        count, rows = 1, 0
        for length in range(most + 1):
            rows += count if length >= low else 0
            count *= len(values) - length
            if count > _MOST_ROWS and length + 1 <= most:
                rows = count
                break
        if rows > _MOST_ROWS:
            reason = f"more than {_MOST_ROWS} arrays are possible; give it a smaller enum or maxItems"
            raise self._refusal("uniqueItems", path, reason)
        arrays = [list(row) for length in range(low, most + 1) for row in itertools.permutations(values, length)]
        others = [kind for kind in _types(node) if kind != "array"]
        for key in ("items", "minItems", "maxItems"):
            node.pop(key, None)
        if node.get("type") == "array":
            node.pop("type")
        yield {"anyOf": [*([{"type": others}] if others else []), *([{"enum": arrays}] if arrays else [False])]}

    def _counts(self, node: Node, given: Node, path: str) -> Iterator[Any]:
        """Numbers of properties, as far as the library does not count those that may be left out."""
        low, high = int(given.get("minProperties", 0)), given.get("maxProperties")
        names = list(node.get("properties", {}))
        required = set(node.get("required", ()))
        optional = [name for name in names if name not in required and node["properties"][name] is not False]
        closed = node.get("additionalProperties") is False and "patternProperties" not in node
        num_required = len(required)
        if low > num_required + (0 if closed else 1) and not closed:
            missing = low - num_required
            if missing > 1:
                raise self._refusal(
                    "minProperties",
                    path,
                    "further properties may be written twice; list them in properties and say additionalProperties: "
                    "false",
                )
        if not closed or not optional or (low <= 1 and high is None and len(required) == 0):
            node.update(given)
            return
        most = len(optional) if high is None else int(high) - num_required
        least = max(0, low - num_required)
        if most < 0 or least > len(optional):
            yield False if _types(node) == ("object",) else {"type": [kind for kind in TYPES if kind != "object"]}
            return
        others = [kind for kind in _types(node) if kind != "object"]
        alternatives: list[Any] = [{"type": others}] if others else []
        sizes = range(least, least + 1) if high is None or most >= len(optional) else range(least, most + 1)
        if sum(math.comb(len(optional), size) for size in sizes) > _MOST_ALTERNATIVES:
            raise self._refusal(next(iter(given)), path, "too many combinations of properties are possible")
        chosen: list[Node] = []
        for row in itertools.chain.from_iterable(itertools.combinations(optional, size) for size in sizes):
            others_left = (
                {}
                if len(sizes) == 1 and most >= len(optional)
                else dict.fromkeys((name for name in optional if name not in row), False)
            )
            chosen.append({"required": list(row), **({"properties": others_left} if others_left else {})})
        if chosen != [{"required": []}]:
            yield {"anyOf": [*alternatives, *({"type": "object", **part} for part in chosen)]}


_RULES: tuple[tuple[tuple[str, ...], Callable[[SchemaLowering, Node, Node, str], Iterator[Any]]], ...] = (
    (("not",), SchemaLowering._not),
    (("if", "then", "else"), SchemaLowering._if),
    (("dependentRequired", "dependentSchemas", "dependencies"), SchemaLowering._dependent),
    (("propertyNames",), SchemaLowering._property_names),
    (("contains", "minContains", "maxContains"), SchemaLowering._contains),
    (("uniqueItems",), SchemaLowering._unique),
    (("minProperties", "maxProperties"), SchemaLowering._counts),
)


# What means the same wherever it stands beside other keywords.
_APART = {"anyOf", "allOf", "type", "required", "minItems", "maxItems"}


def _with_parts(node: Node, parts: list[Any]) -> Node:
    """A node with schemas that must hold as well."""
    parts = [part for part in parts if part is not True and part != {}]
    if not parts:
        return node
    if len(parts) == 1 and isinstance(parts[0], dict) and parts[0].keys() <= _APART - node.keys():
        return {**node, **parts[0]}
    return {**node, "allOf": [*node.get("allOf", ()), *parts]}


def _types(node: Node) -> tuple[str, ...]:
    kinds = node.get("type", list(TYPES))
    return tuple(kinds) if isinstance(kinds, list) else (kinds,)


def _name_pattern(names: Any) -> str | None:
    """The one pattern that `propertyNames` comes to."""
    if not isinstance(names, dict):
        return None
    said = {key: value for key, value in names.items() if key not in ("type", "title", "description")}
    if "type" in names and names["type"] != "string":
        return None
    if said.keys() == {"pattern"}:
        return str(said["pattern"])
    if said.keys() == {"format"} and FORMATS.get(said["format"], (None, 1))[1] is None:
        return f"^(?:{FORMATS[said['format']][0]})$"
    if said and said.keys() <= {"minLength", "maxLength"}:
        return f"^[\\s\\S]{{{int(said.get('minLength', 0))},{int(said['maxLength']) if 'maxLength' in said else ''}}}$"
    return None
