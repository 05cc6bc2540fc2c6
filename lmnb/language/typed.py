"""Python types as JSON schemas, and JSON values as Python values: what `json_schema=` and `dtype=` know of types.

Dataclasses, TypedDicts, enums, `Literal`, unions, lists, tuples, dicts, dates, UUIDs and plain types are handled
here; types that hold a pydantic model, and what `Annotated[...]` gives limits to, are left to pydantic.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import types
import typing
import uuid
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar, Literal, Union, cast, get_args, get_origin

from lmnb.errors import ArgumentError
from lmnb.language import pydantic_types
from lmnb.language.enum_values import check_enum, json_value
from lmnb.language.unenforced import VALUES, noted
from lmnb.runtime.argument_checks import shown

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    Any: {},
    object: {},
    list: {"type": "array"},
    dict: {"type": "object"},
    dt.date: {"type": "string", "format": "date"},
    dt.datetime: {"type": "string", "format": "date-time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
}
_UNIONS = (Union, types.UnionType)


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type, with notes of what only reading a value checks (`unenforced.py`). ArgumentError for a
    type that JSON has no form for, or for limits in `Annotated[...]` that cannot be enforced."""
    if _is_left_to_pydantic(kind):
        return pydantic_types.json_schema(kind)
    writer = _Writer()
    schema = writer.schema(kind)
    return {**schema, "$defs": writer.definitions} if writer.definitions else schema


def value_of(kind: Any, text: str) -> Any:
    """The value of type `kind` that the JSON `text` stands for. ValueError if it is none."""
    return pydantic_types.read(kind, text) if _is_left_to_pydantic(kind) else _convert(kind, json.loads(text))


def convert(kind: Any, value: Any) -> Any:
    """A JSON value as a value of type `kind`. ValueError if it does not fit."""
    return pydantic_types.value_of(kind, value) if _is_left_to_pydantic(kind) else _convert(kind, value)


class _Writer:
    """Collects the schemas of named types, so that types may hold themselves."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._names: list[tuple[Any, str]] = []  # of the named types

    def schema(self, kind: Any) -> dict[str, Any]:
        kind = _bare(kind)
        if hasattr(kind, "__metadata__"):  # with limits
            return merge_definitions(self.definitions, pydantic_types.json_schema(kind))
        if _is_hashable(kind) and kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": [_plain_value(item) for item in arguments]}
        if origin in _UNIONS:
            return {"anyOf": [self.schema(part) for part in arguments]}
        if origin is list:
            return {"type": "array", "items": self.schema(arguments[0])}
        if origin is tuple:
            return self._tuple(arguments)
        if origin is dict and arguments[0] is str:
            return {"type": "object", "additionalProperties": self.schema(arguments[1])}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            _check_enum(kind)
            return {"enum": [member.value for member in kind]}
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            return self._named(kind)
        raise ArgumentError(
            f"{shown(kind)} has no JSON schema; use plain types, list, dict[str, ...], Literal, enums, dataclasses or "
            "pydantic models"
        )

    def _tuple(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if len(arguments) == 2 and arguments[1] is ...:
            return {"type": "array", "items": self.schema(arguments[0])}
        parts = [self.schema(part) for part in arguments]
        if not parts:
            return {"type": "array", "maxItems": 0}
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}

    def _named(self, kind: Any) -> dict[str, Any]:
        name = next((name for other, name in self._names if other is kind), None)
        if name is None:
            name = _free_name(kind.__name__, self.definitions)
            self._names.append((kind, name))
            self.definitions[name] = {}  # stands for it while its own parts refer to it
            fields = list(_fields(kind))
            schema = {
                "type": "object",
                "properties": {field: self.schema(hint) for field, hint, _ in fields},
                "required": [field for field, _, required in fields if required],
                "additionalProperties": False,
            }
            after = hasattr(kind, "__post_init__")
            self.definitions[name] = noted(schema, f"{kind.__name__}.__post_init__") if after else schema
        return {"$ref": f"#/$defs/{name}"}


def merge_definitions(definitions: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with its `$defs` moved into `definitions`; another type of the same name gets a name of its own."""
    added = schema.get("$defs", {})
    names = {}
    for name, definition in added.items():
        same = definitions.get(name, definition) == definition
        names[name] = name if same else _free_name(name, {**definitions, **added})
    refs = {f"#/$defs/{old}": f"#/$defs/{new}" for old, new in names.items() if old != new}
    for name, definition in added.items():
        definitions[names[name]] = _renamed(definition, refs)
    return cast("dict[str, Any]", _renamed({key: value for key, value in schema.items() if key != "$defs"}, refs))


def _renamed(schema: Any, refs: Mapping[str, str]) -> Any:
    if not refs:
        return schema
    if isinstance(schema, list):
        return [_renamed(part, refs) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value
        if key in VALUES
        else refs[value]
        if key == "$ref" and isinstance(value, str) and value in refs
        else _renamed(value, refs)
        for key, value in schema.items()
    }


def _free_name(name: str, taken: Container[str]) -> str:
    return next(free for number in count(1) if (free := name if number == 1 else f"{name}_{number}") not in taken)


def hints_of(thing: Any) -> dict[str, Any]:
    """The types that a class or a function names. ArgumentError for a name that is not there, or no type."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        name = getattr(thing, "__name__", repr(thing))
        raise ArgumentError(f"the types of {name} cannot be read: {error}") from None


def _fields(kind: Any) -> Iterator[tuple[str, Any, bool]]:
    """Name, type and whether it must be there, of a dataclass's or TypedDict's parts."""
    hints = hints_of(kind)
    if typing.is_typeddict(kind):
        for name, hint in hints.items():
            yield name, hint, name in kind.__required_keys__
        return
    for field in kind.__dataclass_fields__.values():
        if field.init and get_origin(hints[field.name]) is not ClassVar and hints[field.name] is not ClassVar:
            given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            yield field.name, hints[field.name], not given


def _convert(kind: Any, value: Any) -> Any:
    kind = _bare(kind)
    if hasattr(kind, "__metadata__"):  # with limits
        return pydantic_types.value_of(kind, value)
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
        found = [item for item in arguments if _is_same(json_value(item), value)]
        return found[0] if found else _one_of((), value)
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
    raise ValueError(f"{shown(value)} is none of {shown(kinds)}")


def _plain_value(item: Any) -> Any:
    try:
        return json_value(item)
    except TypeError as error:
        raise ArgumentError(str(error)) from None


def _check_enum(kind: type[enum.Enum]) -> None:
    try:
        check_enum(kind)
    except TypeError as error:
        raise ArgumentError(str(error)) from None


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other) and type(one) is type(other)


def _one_of(values: tuple[Any, ...], value: Any) -> Any:
    if not any(value == other and type(value) is type(other) for other in values):
        raise ValueError(f"{shown(value)} is none of {shown(values)}")
    return value


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{shown(value)} is no {kind.__name__}")
    return value


def _bare(kind: Any) -> Any:
    """Without `Required`, `NotRequired`, `ReadOnly`, and without an `Annotated` that gives no limits."""
    while True:
        if isinstance(kind, dataclasses.InitVar):
            kind = kind.type
            continue
        if hasattr(kind, "__metadata__"):
            if pydantic_types.has_limits(kind.__metadata__):
                return kind
        elif getattr(get_origin(kind), "_name", "") not in ("Required", "NotRequired", "ReadOnly"):
            return kind
        kind = get_args(kind)[0]


def _is_hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True


def _is_of_another_library(kind: Any) -> bool:
    """Whether it is a type without limits that nothing here reads or writes, and pydantic may."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, typing.TypeVar) or (_is_hashable(kind) and kind in _PLAIN):
        return False
    if origin is not None:
        return origin not in (*_UNIONS, Literal, list, tuple) and not (origin is dict and arguments[0] is str)
    if not isinstance(kind, type):
        return True
    return not (issubclass(kind, enum.Enum) or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind))


def _is_left_to_pydantic(kind: Any) -> bool:
    """Whether some part of the type, apart from what `Annotated[...]` gives limits to, is only pydantic's to read."""
    seen: list[Any] = []
    waiting = [kind]
    found = False
    while waiting:
        part = _bare(waiting.pop())
        if any(part is other for other in seen):
            continue
        seen.append(part)
        if hasattr(part, "__metadata__"):
            continue
        if pydantic_types.is_pydantics(part) or _is_of_another_library(part):
            found = True
        elif dataclasses.is_dataclass(part) or typing.is_typeddict(part):
            waiting.extend(hint for _, hint, _ in _fields(part))
        elif get_origin(part) is not Literal:
            waiting.extend(get_args(part))
    return found
