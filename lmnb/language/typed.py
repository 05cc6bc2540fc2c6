"""Python types as JSON schemas, and JSON values as Python values: what `json_schema=` and `dtype=` know of types.

Dataclasses, TypedDicts, enums, `Literal`, unions, lists, tuples, dicts, dates, UUIDs and plain types are handled
here; types that hold a pydantic model are left to pydantic.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import sys
import types
import typing
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, Union, get_args, get_origin

from lmnb.errors import ArgumentError

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    Any: {},
    list: {"type": "array"},
    dict: {"type": "object"},
    dt.date: {"type": "string", "format": "date"},
    dt.datetime: {"type": "string", "format": "date-time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
}
_UNIONS = (Union, types.UnionType)


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type. ArgumentError for a type that JSON has no form for."""
    if _needs_pydantic(kind):
        from pydantic import TypeAdapter

        adapted: dict[str, Any] = TypeAdapter(kind).json_schema()
        return adapted
    writer = _Writer()
    schema = writer.schema(kind)
    return {**schema, "$defs": writer.definitions} if writer.definitions else schema


def value_of(kind: Any, text: str) -> Any:
    """The value of type `kind` that the JSON `text` stands for. ValueError if it is none."""
    if _needs_pydantic(kind):
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_json(text)
    return convert(kind, json.loads(text))


def convert(kind: Any, value: Any) -> Any:
    """A JSON value as a value of type `kind`. ValueError if it does not fit."""
    if _needs_pydantic(kind):
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_python(value)
    return _convert(kind, value)


class _Writer:
    """Collects the schemas of named types, so that types may hold themselves."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def schema(self, kind: Any) -> dict[str, Any]:
        kind = _bare(kind)
        if _is_hashable(kind) and kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in _UNIONS:
            return {"anyOf": [self.schema(part) for part in arguments]}
        if origin is list:
            return {"type": "array", "items": self.schema(arguments[0])}
        if origin is tuple:
            return self._tuple(arguments)
        if origin is dict and arguments[0] is str:
            return {"type": "object", "additionalProperties": self.schema(arguments[1])}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            return self._named(kind)
        raise ArgumentError(
            f"{kind!r} has no JSON schema; use plain types, list, dict[str, ...], Literal, enums, dataclasses or "
            "pydantic models"
        )

    def _tuple(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if len(arguments) == 2 and arguments[1] is ...:
            return {"type": "array", "items": self.schema(arguments[0])}
        parts = [self.schema(part) for part in arguments]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}

    def _named(self, kind: Any) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # stands for it while its own parts refer to it
            fields = list(_fields(kind))
            self.definitions[name] = {
                "type": "object",
                "properties": {field: self.schema(hint) for field, hint, _ in fields},
                "required": [field for field, _, required in fields if required],
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{name}"}


def _fields(kind: Any) -> Iterator[tuple[str, Any, bool]]:
    """Name, type and whether it must be there, of a dataclass's or TypedDict's parts."""
    hints = typing.get_type_hints(kind)
    if typing.is_typeddict(kind):
        for name, hint in hints.items():
            yield name, hint, name in kind.__required_keys__
        return
    for field in dataclasses.fields(kind):
        if field.init:
            given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            yield field.name, hints[field.name], not given


def _convert(kind: Any, value: Any) -> Any:
    kind = _bare(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return _convert_union(arguments, value)
    if origin is list:
        return [_convert(arguments[0], item) for item in _checked(value, list)]
    if origin is tuple:
        items = _checked(value, list)
        kinds = arguments[:1] * len(items) if arguments[-1:] == (...,) else arguments
        return tuple(_convert(part, item) for part, item in zip(kinds, items, strict=True))
    if origin is dict:
        return {key: _convert(arguments[1], item) for key, item in _checked(value, dict).items()}
    if origin is Literal:
        return _one_of(arguments, value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        fields = {name: hint for name, hint, _ in _fields(kind)}
        return kind(**{name: _convert(fields[name], item) for name, item in _checked(value, dict).items()})
    if kind in (dt.date, dt.datetime):
        return kind.fromisoformat(value.upper().replace("Z", "+00:00"))
    if kind is uuid.UUID:
        return uuid.UUID(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (str, int, float, bool, list, dict):
        return _checked(value, kind)
    if kind in (None, type(None)):
        return _one_of((None,), value)
    return value


def _convert_union(kinds: tuple[Any, ...], value: Any) -> Any:
    for kind in kinds:
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            return _convert(kind, value)
    raise ValueError(f"{value!r} is none of {kinds!r}")


def _one_of(values: tuple[Any, ...], value: Any) -> Any:
    if not any(value == other and type(value) is type(other) for other in values):
        raise ValueError(f"{value!r} is none of {values!r}")
    return value


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value


def _bare(kind: Any) -> Any:
    """Without `Annotated`, `Required` and `NotRequired`."""
    while hasattr(kind, "__metadata__") or getattr(get_origin(kind), "_name", "") in ("Required", "NotRequired"):
        kind = get_args(kind)[0]
    return kind


def _is_hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True


def _needs_pydantic(kind: Any) -> bool:
    """Whether some part of the type is a pydantic model (then pydantic is loaded already)."""
    if "pydantic" not in sys.modules:
        return False
    from pydantic import BaseModel
    from pydantic.dataclasses import is_pydantic_dataclass

    seen: list[Any] = []
    waiting = [kind]
    while waiting:
        part = _bare(waiting.pop())
        if any(part is other for other in seen):
            continue
        seen.append(part)
        if isinstance(part, type) and (issubclass(part, BaseModel) or is_pydantic_dataclass(part)):
            return True
        waiting.extend(get_args(part))
        if dataclasses.is_dataclass(part) or typing.is_typeddict(part):
            waiting.extend(hint for _, hint, _ in _fields(part))
    return False
