"""Tags that tell a union's models apart: pydantic reads none without its tag, even where that has a default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmnb.language.unenforced import VALUES

_MARK = "x-tags"  # of a union's schema, until its models are all written: the names that its tag may have


def tagged(schema: dict[str, Any], discriminator: str | list[Any]) -> dict[str, Any]:
    """The schema of a union with its tag, a name or paths to it as pydantic's core schema has them, kept for
    `with_required`."""
    paths = [discriminator] if isinstance(discriminator, str) else discriminator
    steps = [[path] if isinstance(path, str | int) else path for path in paths]
    return {**schema, _MARK: [path[0] for path in steps if len(path) == 1 and isinstance(path[0], str)]}


def with_required(root: dict[str, Any]) -> dict[str, Any]:
    """A whole schema in which each model that is told apart by a tag requires it, changed in place."""
    for union in [node for node in _nodes(root) if isinstance(node.get(_MARK), list)]:
        names = union.pop(_MARK)
        waiting, seen = list(union["oneOf"]), set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if "$ref" in node:
                waiting.append(root.get("$defs", {})[node["$ref"].removeprefix("#/$defs/")])
            waiting += [part for key in ("oneOf", "anyOf", "allOf") for part in node.get(key, ())]
            name = next((name for name in names if name in node.get("properties", ())), None)
            if name is not None and name not in node.get("required", ()):
                node["required"] = [*node.get("required", ()), name]
    return root


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, list):
        for item in part:
            yield from _nodes(item)
    elif isinstance(part, dict):
        yield part
        for key, value in part.items():
            if key not in VALUES:
                yield from _nodes(value)
