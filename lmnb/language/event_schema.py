"""The events' wire form as a JSON Schema, and values read back by it: both follow the event classes' own types.

Knows nothing of files. Numbers that JSON has no sign for are the texts "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from lmnb.language.events import EVENT_TYPES, RunEvent

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    float: {"anyOf": [{"type": "number"}, {"enum": list(_NOT_FINITE)}]},
    Any: {},
    object: {},
}


class MisfitError(Exception):
    """A value is not of its field's type; the message says which."""


def event_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one event."""
    return {"anyOf": [_object(kind, event) for kind, event in EVENT_TYPES.items()]}


def encode(value: Any) -> Any:
    """The value with finite numbers only."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def encode_event(event: RunEvent) -> dict[str, Any]:
    """The event as JSON: its fields and `type`."""
    fields: dict[str, Any] = encode(event)
    return {"type": event.type, **fields}


def decode_event(message: Any) -> RunEvent:
    """The event that `encode_event` wrote. MisfitError if it is none. Fields that are not known are left out."""
    if not isinstance(message, dict) or message.get("type") not in EVENT_TYPES:
        raise MisfitError(
            f"there is no event of type {message.get('type') if isinstance(message, dict) else message!r}"
        )
    kind = EVENT_TYPES[message["type"]]
    return typing.cast(RunEvent, _decode_fields(message, kind, message["type"]))


def _object(kind: str, event: type[Any]) -> dict[str, Any]:
    schema = _schema(event)
    schema["properties"] = {"type": {"const": kind}, **schema["properties"]}
    schema["required"] = ["type", *schema["required"]]
    return schema


def _schema(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(argument) for argument in arguments]}
    if _is_list(origin):
        if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
            return {"type": "array", "prefixItems": [_schema(argument) for argument in arguments]}
        return {"type": "array", "items": _schema(arguments[0])}
    if _is_dict(origin):
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    hints, required = _fields(hint)
    return {
        "type": "object",
        "properties": {name: _schema(of) for name, of in hints.items()},
        "required": required,
    }


def _decode(value: Any, hint: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is float:
        if isinstance(value, str) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    elif hint in (Any, object):
        return value
    elif hint in _PLAIN:
        if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
            return value
    elif origin is Literal:
        if value in arguments:
            return value
    elif origin in (Union, types.UnionType):
        found = next((decoded for argument in arguments for decoded in _attempt(value, argument, where)), None)
        if found is not None or (value is None and type(None) in arguments):
            return found
    elif _is_list(origin):
        if isinstance(value, list):
            return _decode_items(value, origin, arguments, where)
    elif _is_dict(origin):
        if isinstance(value, dict):
            return {key: _decode(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    elif isinstance(value, dict):
        return _decode_fields(value, hint, where)
    raise MisfitError(f"{where} is {str(value)[:40]!r}")


def _attempt(value: Any, hint: Any, where: str) -> list[Any]:
    """`[decoded value]`, or [] if it does not fit."""
    try:
        return [_decode(value, hint, where)]
    except MisfitError:
        return []


def _decode_items(value: list[Any], origin: Any, arguments: Sequence[Any], where: str) -> Any:
    fixed = origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis)
    if fixed and len(value) != len(arguments):
        raise MisfitError(f"{where} has {len(value)} items")
    hints = arguments if fixed else [arguments[0]] * len(value)
    items = [_decode(item, hint, f"{where}[{i}]") for i, (item, hint) in enumerate(zip(value, hints, strict=True))]
    return tuple(items) if origin is tuple else items


def _decode_fields(value: Mapping[str, Any], kind: Any, where: str) -> Any:
    hints, required = _fields(kind)
    missing = [name for name in required if name not in value]
    if missing:
        raise MisfitError(f"{where} has no {missing[0]}")
    return kind(**{name: _decode(value[name], of, f"{where}.{name}") for name, of in hints.items() if name in value})


def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The types of a class's fields by name, and which of them must be there."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return hints, sorted(kind.__required_keys__)
    assert dataclasses.is_dataclass(kind), f"{kind} has no JSON form"
    fields = dataclasses.fields(kind)
    no_default = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    return {field.name: hints[field.name] for field in fields}, no_default


def _is_list(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _is_dict(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)
