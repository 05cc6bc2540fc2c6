"""What a generation must look like, by any of `gen`'s ways to say it, and how its text becomes a value."""

from __future__ import annotations

import enum
import json
import re
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from lmnb.backends.plain_values import PATTERNS
from lmnb.errors import ArgumentError, GrammarError
from lmnb.language.pydantic_types import model_schema
from lmnb.language.tools import named_tools, read_call, tools_schema
from lmnb.language.typed import schema_of, value_of
from lmnb.runtime.argument_checks import check_text, shown
from lmnb.runtime.request import Constraint

_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
    "str": lambda text: text[1:-1],
}


@dataclass(frozen=True)
class Shape:
    """`read` turns a complete text into its value; ValueError and the like if it cannot. Without it, it is text."""

    constraint: Constraint
    extra_stop: tuple[str, ...] = ()
    read: Callable[[str], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ShapeArguments:
    """`gen`'s arguments that constrain a text, as they were given."""

    dtype: Any = None
    regex: str | None = None
    json_schema: Any = None
    ebnf: str | None = None
    tools: Iterable[Callable[..., Any]] | None = None
    json_style: str = "compact"
    grammar_backend: str = "auto"

    def shape(self) -> Shape | None:
        """The shape they ask for, if any. ArgumentError or GrammarError for what cannot be."""
        if self.json_style not in ("compact", "loose"):
            raise ArgumentError(f"json_style must be 'compact' or 'loose', not {self.json_style!r}")
        if self.grammar_backend not in ("auto", "llguidance", "xgrammar"):
            raise ArgumentError(
                f"grammar_backend must be 'auto', 'llguidance' or 'xgrammar', not {self.grammar_backend!r}"
            )
        given = [name for name in ("regex", "json_schema", "ebnf", "tools", "dtype") if getattr(self, name) is not None]
        if not given:
            return None
        if "dtype" in given:
            if len(given) > 1:
                warnings.warn(f"dtype= is used, and {given[0]}= is not", stacklevel=4)
            return self._of_dtype()
        if len(given) > 1:
            raise ArgumentError(f"{given[0]}= and {given[1]}= cannot both hold; give one of them")
        if self.regex is not None:
            return Shape(self._constraint("regex", _checked_regex(self.regex)))
        if self.ebnf is not None:
            return Shape(self._constraint("ebnf", _checked_text("ebnf", self.ebnf)))
        if self.tools is not None:
            tools = named_tools(self.tools)
            return Shape(self._json(tools_schema(tools)), read=lambda text: read_call(tools, text))
        return self._of_schema(self.json_schema)

    def _of_dtype(self) -> Shape:
        key = self.dtype if isinstance(self.dtype, str) else getattr(self.dtype, "__name__", "")
        if key in PATTERNS and (isinstance(self.dtype, str) or self.dtype in (int, float, bool, str)):
            pattern, extra_stop = PATTERNS[key]
            return Shape(self._constraint("regex", pattern), extra_stop, _READERS[key])
        options = _text_options(self.dtype)
        if options is not None:
            choices = Constraint.of_choices(options)
            return Shape(self._constraint("regex", choices.source), read=lambda text: options[text])
        if isinstance(self.dtype, str) or not _is_type(self.dtype):
            raise ArgumentError(
                f"dtype must be int, float, bool or str, or a type such as list[int], an enum or a dataclass, not "
                f"{self.dtype!r}; use regex= for other shapes"
            )
        return self._of_schema(self.dtype)

    def _of_schema(self, schema: Any) -> Shape:
        if hasattr(schema, "model_json_schema"):  # pydantic's, or like it
            read = getattr(schema, "model_validate_json", json.loads)
            return Shape(self._json(model_schema(schema)), read=read)
        if _is_type(schema):
            return Shape(self._json(schema_of(schema)), read=lambda text: value_of(schema, text))
        if isinstance(schema, Mapping | bool):
            return Shape(self._json(schema), read=json.loads)
        text = _checked_text("json_schema", schema)
        try:
            json.loads(text)
        except ValueError as error:
            raise GrammarError(f"json_schema is not JSON: {error}") from error
        except RecursionError:
            raise GrammarError(_TOO_DEEP) from None
        return Shape(self._constraint("json_schema", text), read=json.loads)

    def _json(self, schema: Any) -> Constraint:
        try:
            source = json.dumps(schema, ensure_ascii=False)
        except RecursionError:
            raise GrammarError(_TOO_DEEP) from None
        except (TypeError, ValueError) as error:  # a set; a dict that holds itself
            raise ArgumentError(f"json_schema must be plain JSON data: {error}") from None
        return self._constraint("json_schema", source)

    def _constraint(self, kind: Literal["regex", "json_schema", "ebnf"], source: str) -> Constraint:
        check_text(kind, source)
        engine: Any = self.grammar_backend
        return Constraint(kind, source, loose=kind == "json_schema" and self.json_style == "loose", engine=engine)


_TOO_DEEP = "json_schema is nested too deeply; flatten it with $defs"


def _is_type(value: Any) -> bool:
    return isinstance(value, (type, types.GenericAlias, types.UnionType)) or get_origin(value) is not None


def _text_options(kind: Any) -> dict[str, Any] | None:
    """The texts of a `Literal` or an enum that has texts only, with their values; None for any other type."""
    if get_origin(kind) is Union:
        return None
    if get_origin(kind) is Literal:
        options = {value: value for value in get_args(kind)}
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        options = {member.value: member for member in kind}
    else:
        return None
    return options if options and all(isinstance(text, str) and text for text in options) else None


def _checked_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        others = ", a dict, a pydantic model, a dataclass or another type" if name == "json_schema" else ""
        raise ArgumentError(f"{name} must be text{others}, not {value!r}")
    return value


def _checked_regex(regex: str) -> str:
    _checked_text("regex", regex)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets that may mean something else one day
            re.compile(regex)
    except re.error as error:
        # Engines know Unicode classes that Python's re does not; the engine judges those.
        if "\\p" not in regex and "\\P" not in regex:
            raise GrammarError(f"regex={shown(regex)} is not a regular expression: {error}") from error
    except (OverflowError, RecursionError) as error:
        raise GrammarError(f"regex={shown(regex)} is too large: {error}; simplify it") from None
    return regex
