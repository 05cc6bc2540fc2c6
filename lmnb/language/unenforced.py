"""What a type checks that no grammar can: noted in its schema while that is written, then taken out, with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmnb.runtime.json_reading import pointer

_MARK = "x-unenforced"
VALUES = ("const", "default", "enum", "examples")  # of a schema: values, in which nothing is a schema
_MAPS = ("properties", "patternProperties", "$defs")


def noted(schema: dict[str, Any], what: str) -> dict[str, Any]:
    """The schema with a note: a few words for what only `s.parsed` checks of its values."""
    known = schema.get(_MARK, [])
    return schema if what in known else {**schema, _MARK: [*known, what]}


def notes_of(schema: Mapping[str, Any]) -> list[str]:
    """The notes of the schema itself."""
    return list(schema.get(_MARK, ()))


def plain(schema: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The schema without its notes, and the notes with their places, one of each kind and place."""
    found: list[str] = []
    result: dict[str, Any] = _plain(schema, "#", found, named=False)
    return result, tuple(dict.fromkeys(found))


def _plain(part: Any, path: str, found: list[str], *, named: bool) -> Any:
    """`named`: whether the keys are names of schemas, and no keywords."""
    if isinstance(part, list):
        return [_plain(item, f"{path}/{i}", found, named=False) for i, item in enumerate(part)]
    if not isinstance(part, Mapping):
        return part
    result = {}
    for key, value in part.items():
        if key == _MARK and not named:
            found += [f"{path}: {what}" for what in value]
        elif key in VALUES and not named:
            result[key] = value
        else:
            result[key] = _plain(value, f"{path}/{pointer(key)}", found, named=key in _MAPS and not named)
    return result
