"""What pydantic knows of types: its models, and the limits that `Annotated[...]` gives to any type.

pydantic is imported when a type needs it, not before.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lmnb.errors import ArgumentError, LmnbError, MissingPackageError
from lmnb.language.unenforced import VALUES
from lmnb.runtime.argument_checks import shown

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# What pydantic reads of annotated_types; it drops the rest (time zones, units) without a word.
_LIMITS = frozenset(("Gt", "Ge", "Lt", "Le", "Interval", "MultipleOf", "MinLen", "MaxLen", "Len", "Predicate", "Not"))
_LIMITS_OF = {  # JSON Schema's limits, by the types that they are for
    ("string",): {"minLength", "maxLength", "pattern"},
    ("array",): {"minItems", "maxItems"},
    ("integer", "number"): {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
_FEW = 6  # values of which all sets, in any order, are still not many
_NOTES = frozenset(("Doc", "DocInfo"))  # of typing_extensions and annotated_types


def is_pydantics(kind: Any) -> bool:
    """Whether only pydantic can read this type: a model, a class that tells pydantic how to, a dataclass with a `Field`
    as a default. What is in the type does not count."""
    if "pydantic" not in sys.modules or not isinstance(kind, type):
        return False
    if hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__pydantic_core_schema__"):
        return True
    return dataclasses.is_dataclass(kind) and any(is_field(field.default) for field in dataclasses.fields(kind))


def is_field(value: Any) -> bool:
    """Whether it is what pydantic's `Field(...)` returns."""
    return any(base.__module__ == "pydantic.fields" and base.__name__ == "FieldInfo" for base in type(value).__mro__)


def has_limits(metadata: Iterable[Any]) -> bool:
    """Whether what stands behind a type in `Annotated[...]` says more than what it is for. ArgumentError for what
    nothing here enforces."""
    found = False
    for item in metadata:
        if item is None or isinstance(item, str) or type(item).__name__ in _NOTES:
            continue
        if not _is_known(item):
            raise ArgumentError(
                f"{shown(item)} in Annotated[...] cannot be enforced; use pydantic's Field or annotated_types such as "
                "Ge and Len, or remove it and check the value afterwards"
            )
        found = True
    return found


def json_schema(kind: Any) -> dict[str, Any]:
    """pydantic's JSON schema of a type, with notes (`unenforced.py`). ArgumentError for a type that it has none for."""
    try:
        adapter = _adapter(kind)
        from lmnb.language.pydantic_writer import Writer

        schema: dict[str, Any] = adapter.json_schema(schema_generator=Writer)
    except Exception as error:  # pydantic's own, or of a method that tells pydantic what a class is
        raise _refusal(kind, error) from error
    _check_limits(kind, schema)
    plain: dict[str, Any] = _without_needless_uniqueness(schema, schema)
    return plain


def model_schema(model: Any) -> dict[str, Any]:
    """The JSON schema that a pydantic model, or something like one, has of itself, with notes. ArgumentError if it has
    none."""
    try:
        schema: dict[str, Any] = _schema_of_model(model)
    except Exception as error:
        raise _refusal(model, error) from error
    _check_limits(model, schema)
    plain: dict[str, Any] = _without_needless_uniqueness(schema, schema)
    return plain


def _schema_of_model(model: Any) -> dict[str, Any]:
    schema: dict[str, Any]
    if "pydantic" in sys.modules and hasattr(model, "__pydantic_core_schema__"):
        from lmnb.language.pydantic_writer import Writer

        schema = model.model_json_schema(schema_generator=Writer)
    else:
        schema = model.model_json_schema()
    return schema


def _without_needless_uniqueness(part: Any, schema: dict[str, Any]) -> Any:
    """A copy that lets a set's item be written twice, which makes the same set, where grammars could not forbid it."""
    if isinstance(part, list):
        return [_without_needless_uniqueness(item, schema) for item in part]
    if not isinstance(part, dict):
        return part
    copy = {key: value if key in VALUES else _without_needless_uniqueness(value, schema) for key, value in part.items()}
    if copy.get("uniqueItems") is True and "minItems" not in copy:
        items = copy.get("items", {})
        name = items.get("$ref", "").removeprefix("#/$defs/") if isinstance(items, dict) else ""
        listed = schema.get("$defs", {}).get(name, items)
        few = listed.get("enum", range(2) if listed.get("type") == "boolean" else ())
        if not 0 < len(few) <= _FEW or "const" in listed:
            del copy["uniqueItems"]
    return copy


def value_of(kind: Any, value: Any) -> Any:
    """A JSON value as a value of type `kind`, all limits checked. ValueError if it does not fit."""
    return read(kind, json.dumps(value))


def read(kind: Any, text: str) -> Any:
    """`value_of` of what the JSON `text` says."""
    return _adapter(kind).validate_json(text)


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        from pydantic import TypeAdapter
    except ImportError:
        raise MissingPackageError(
            f"{_name(kind)} is read, and its limits are enforced, by pydantic: pip install pydantic"
        ) from None
    return TypeAdapter(kind)


def _is_known(item: Any) -> bool:
    bases = (item if isinstance(item, type) else type(item)).__mro__
    if hasattr(item, "__get_pydantic_core_schema__") or hasattr(item, "__get_pydantic_json_schema__"):
        return True
    if any(base.__module__.partition(".")[0] in ("pydantic", "pydantic_core") for base in bases):
        return True
    return any(base.__module__ == "annotated_types" and base.__name__ in _LIMITS for base in bases)


def _check_limits(kind: Any, schema: Any) -> None:
    """ArgumentError for a limit that says nothing of its type, such as an int's min_length."""
    if isinstance(schema, list):
        for part in schema:
            _check_limits(kind, part)
    if not isinstance(schema, dict):
        return
    for types, limits in _LIMITS_OF.items():
        wrong = limits & schema.keys()
        if isinstance(schema.get("type"), str) and schema["type"] not in types and wrong:
            raise ArgumentError(f"{_name(kind)}: {min(wrong)} says nothing of a JSON {schema['type']}; remove it")
    for keyword, part in schema.items():
        if keyword not in VALUES:
            _check_limits(kind, part)


def _refusal(kind: Any, error: Exception) -> LmnbError:
    if isinstance(error, MissingPackageError):
        return error
    first, *lines = str(error).strip().split("\n")
    reason = first.partition(". Set `arbitrary_types_allowed")[0]
    if first.endswith(":") and lines:  # what is wrong stands last, behind where it is
        reason = f"{first} {lines[-1].strip().removeprefix('SchemaError: ').removeprefix('error: ')}"
    return ArgumentError(f"{_name(kind)} has no JSON schema: {reason}")


def _name(kind: Any) -> str:
    return kind.__qualname__.rpartition(".")[2] if isinstance(kind, type) else shown(kind)
