"""What a generation must look like, by any of `gen`'s ways to say it, and how its text becomes a value."""

from __future__ import annotations

import enum
import itertools
import json
import re
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NewType, Union, get_args, get_origin

from lmnb.backends.plain_values import PATTERNS
from lmnb.errors import ArgumentError, GrammarError
from lmnb.language import unenforced
from lmnb.language.pydantic_types import model_schema
from lmnb.language.source import warn_at_caller
from lmnb.language.tools import named_tools, read_call, tools_schema
from lmnb.language.typed import schema_of, value_of
from lmnb.runtime.argument_checks import check_text, shown
from lmnb.runtime.constraint_size import check_length, is_small
from lmnb.runtime.json_reading import LossError, WholeDecoder
from lmnb.runtime.request import Constraint

_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
    "str": lambda text: text[1:-1],
}


@dataclass(frozen=True)
class Shape:
    """`read` turns a complete text into its value; ValueError and the like if it cannot. `notes`: what the constraint
    does not enforce, and `read` checks, by place."""

    constraint: Constraint
    extra_stop: tuple[str, ...] = ()
    read: Callable[[str], Any] = str
    notes: tuple[str, ...] = ()


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
            raise ArgumentError(f"json_style must be 'compact' or 'loose', not {shown(self.json_style)}")
        if self.grammar_backend not in ("auto", "llguidance", "xgrammar"):
            raise ArgumentError(
                f"grammar_backend must be 'auto', 'llguidance' or 'xgrammar', not {shown(self.grammar_backend)}"
            )
        given = self._given()
        if not given:
            return None
        if "dtype" in given:
            if len(given) > 1:
                warn_at_caller(f"dtype= is used, and {given[0]}= is not")
            return self._of_dtype()
        if len(given) > 1:
            raise ArgumentError(f"{given[0]}= and {given[1]}= cannot both hold; give one of them")
        if self.regex is not None:
            return Shape(self._constraint("regex", _checked_regex(self.regex)))
        if self.ebnf is not None:
            return Shape(self._constraint("ebnf", _checked_text("ebnf", self.ebnf)))
        if self.tools is not None:
            tools = named_tools(self.tools)
            return self._of_type(tools_schema(tools), lambda text: read_call(tools, text))
        return self._of_schema(self.json_schema)

    def refuse_beside(self, other: str) -> None:
        """ArgumentError if anything is asked for beside the argument `other`, which constrains the text by itself."""
        if given := self._given():
            raise ArgumentError(f"{other}= and {given[0]}= cannot both hold; give one of them")

    def _given(self) -> list[str]:
        return [name for name in ("regex", "json_schema", "ebnf", "tools", "dtype") if getattr(self, name) is not None]

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
                f"{shown(self.dtype)}; use regex= for other shapes"
            )
        return self._of_schema(self.dtype)

    def _of_schema(self, schema: Any) -> Shape:
        if hasattr(schema, "model_json_schema"):  # pydantic's, or like it
            read = getattr(schema, "model_validate_json", json.loads)
            return self._of_type(model_schema(schema), read)
        if _is_type(schema):
            return self._of_type(schema_of(schema), lambda text: value_of(schema, text))
        if isinstance(schema, Mapping | bool):
            return Shape(self._json(schema), read=json.loads)
        text = _checked_text("json_schema", schema)
        try:
            json.loads(text, cls=WholeDecoder)
        except LossError as error:
            raise GrammarError(f"in the JSON schema, {error}") from None
        except ValueError as error:
            raise GrammarError(f"json_schema is not JSON: {error}") from error
        except RecursionError:
            raise GrammarError(_TOO_DEEP) from None
        return Shape(self._constraint("json_schema", text), read=json.loads)

    def _of_type(self, schema: dict[str, Any], read: Callable[[str], Any]) -> Shape:
        plain, notes = unenforced.plain(schema)
        return Shape(self._json(plain), read=read, notes=notes)

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
        if kind == "json_schema" and source.count("{") + source.count("[") > _MOST_NESTED < _nesting(source):
            raise GrammarError(_TOO_DEEP)
        engine: Any = self.grammar_backend
        return Constraint(kind, source, loose=kind == "json_schema" and self.json_style == "loose", engine=engine)


_TOO_DEEP = "json_schema is nested too deeply; flatten it with $defs"
_MOST_NESTED = 500  # brackets: no grammar is made of so many, and Pythons differ in how many their json reads
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def _nesting(source: str) -> int:
    """How deeply the brackets of a JSON text are nested."""
    steps = ((char in "[{") - (char in "]}") for char in _JSON_STRING.sub("", source))
    return max(itertools.accumulate(steps), default=0)


def _is_type(value: Any) -> bool:
    kinds = (type, types.GenericAlias, types.UnionType, NewType)
    return isinstance(value, kinds) or get_origin(value) is not None or type(value).__name__ == "TypeAliasType"


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


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _checked_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        others = ", a dict, a pydantic model, a dataclass or another type" if name == "json_schema" else ""
        is_list_of_type = name == "json_schema" and isinstance(value, list) and len(value) == 1 and _is_type(value[0])
        meant = f"; did you mean list[{_type_name(value[0])}]?" if is_list_of_type else ""
        raise ArgumentError(f"{name} must be text{others}, not {shown(value)}{meant}")
    return value


def _checked_regex(regex: str) -> str:
    _checked_text("regex", regex)
    constraint = Constraint("regex", regex)
    check_length(constraint)
    if not is_small(constraint):  # compiling it may hold up all threads; who enforces it judges it elsewhere
        return regex
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
