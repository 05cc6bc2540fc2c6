"""Texts that stand for one plain value: numbers, truth values, quoted texts, one of several texts.

`dtype=` and choices are regexes in this program. An API that enforces no regexes, and has structured output, can still
be asked for such a value: as JSON, from which the text is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from lmnb.errors import RemoteError
from lmnb.runtime.request import Constraint

# By name: the regex, and the stops that end it. Numbers end at the first space or line break after them.
PATTERNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "int": (r"[-+]?[0-9]+[ \n]*", (" ", "\n")),
    "float": (r"[-+]?[0-9]*\.?[0-9]+[ \n]*", (" ", "\n")),
    "bool": (r"(True|False)", ()),
    "str": (r'"[^"\\\n]*"', ()),
}
_NAME = "value"  # of the only property of the JSON object: APIs want an object
_PATTERN_OF = {pattern: name for name, (pattern, _) in PATTERNS.items()}


@dataclass(frozen=True)
class PlainValue:
    """What a constraint stands for. `name` is a dtype's, "choices" or "json_schema"; `choices` are the texts where
    there are only some."""

    name: str
    pattern: str | None  # that the text matches
    schema: dict[str, Any]
    write: Callable[[Any], str | None]  # the text of a JSON value; None if it has none
    choices: tuple[str, ...] = ()
    definitions: dict[str, Any] = field(default_factory=dict)  # that the schema refers to

    def json_schema(self, prefix: str) -> Constraint:
        """An object that holds the value. Text that the turn begins with, and that an API cannot go on from, is told
        in the value's description."""
        told = {"description": f"What follows this beginning of your answer: {prefix}"} if prefix.strip() else {}
        schema = {
            "type": "object",
            "properties": {_NAME: {**self.schema, **told}},
            "required": [_NAME],
            "additionalProperties": False,
            **({"$defs": self.definitions} if self.definitions else {}),
        }
        return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))

    def text(self, answer: str) -> str:
        """The value's text from the API's JSON. RemoteError if it is not what was asked for."""
        try:
            found = self.write(json.loads(answer)[_NAME])
        except (ValueError, KeyError, TypeError, ArithmeticError):
            found = None
        if found is None or (self.pattern is not None and not re.fullmatch(self.pattern, found)):
            raise RemoteError(
                f"the API was asked for a value ({self.name}) and answered {answer[:80]!r}, which has none that can be "
                "written; ask again, or use json_schema"
            )
        return found


def plain_value(constraint: Constraint | None) -> PlainValue | None:
    """The value that a regex stands for, if it does."""
    if constraint is None or constraint.kind != "regex":
        return None
    name = _PATTERN_OF.get(constraint.source)
    if name is not None:
        return PlainValue(name, constraint.source, _SCHEMAS[name], _WRITERS[name], _BOOLS if name == "bool" else ())
    choices = _choices(constraint.source)
    return None if choices is None else one_of(choices)


def value_of_schema(constraint: Constraint | None) -> PlainValue | None:
    """The value of a JSON schema whose root is no object (a list, a number, an enum, a reference), which APIs that
    want an object at the root do not take as it is."""
    if constraint is None or constraint.kind != "json_schema":
        return None
    try:
        schema = json.loads(constraint.source)
    except ValueError:
        return None  # what is called with it says so
    if not isinstance(schema, dict) or schema.get("type") == "object" or '"#"' in constraint.source:
        return None
    definitions = schema.pop("$defs", {})
    return PlainValue("json_schema", None, schema, _compact, definitions=definitions)


def one_of(choices: Sequence[str]) -> PlainValue:
    """One of several texts."""
    schema = {"type": "string", "enum": list(dict.fromkeys(choices))}
    pattern = Constraint.of_choices(choices).source
    return PlainValue("choices", pattern, schema, lambda value: value if value in choices else None, tuple(choices))


def _choices(pattern: str) -> tuple[str, ...] | None:
    """The texts of which `pattern` is made by `Constraint.of_choices`; None for any other regex."""
    parts = re.split(r"(?<!\\)((?:\\\\)*)\|", pattern)  # at a bar that no backslash stands before
    texts = [a + b for a, b in zip(parts[::2], [*parts[1::2], ""], strict=True)]
    choices = tuple(re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL) for text in texts)
    return choices if all(choices) and Constraint.of_choices(choices).source == pattern else None


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _whole(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
        return None
    return str(int(value))


def _decimal(value: Any) -> str | None:
    """Without an exponent, which the regex has none of."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return format(Decimal(repr(value)), "f")


_BOOLS = ("True", "False")
_SCHEMAS: dict[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
}
_WRITERS: dict[str, Callable[[Any], str | None]] = {
    "int": _whole,
    "float": _decimal,
    "bool": lambda value: str(value) if isinstance(value, bool) else None,
    "str": lambda value: f'"{value}"' if isinstance(value, str) else None,
}
