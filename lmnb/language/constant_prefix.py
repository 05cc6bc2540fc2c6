"""The constant text that every run of a program begins with, read from its source: nothing of the program is executed.

Understands what programs begin with: texts, f-strings, roles, names of constants. It ends at the first thing whose
value it does not know, so it is never too long; where there is no source it is empty.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lmnb.language import primitives
from lmnb.language.definition import definition_of
from lmnb.language.expressions import Expr, ExprList, RoleBegin, RoleEnd, Text
from lmnb.language.submission import merge_text

Arguments = tuple[Sequence[Any], Mapping[str, Any]]

_PLAIN = (str, int, float, bool)
_MARKS: dict[Any, Expr] = {
    make: mark
    for role in primitives.ROLES
    for make, mark in (
        (getattr(primitives, f"{role}_begin"), RoleBegin(role)),
        (getattr(primitives, f"{role}_end"), RoleEnd(role)),
    )
}
_TURNS: dict[Any, str] = {getattr(primitives, role): role for role in primitives.ROLES}


class _UnknownError(Exception):
    """Here the constant part ends."""


def constant_prefix(func: Callable[..., Any], known: Mapping[str, Any], owner: object | None = None) -> list[Expr]:
    """Leading texts and role marks of the program `func`, with the parameters in `known` given.

    `owner`: the object whose method it is. A role that is open at the end stays open.
    """
    definition = definition_of(func)
    if definition is None:
        return []
    reader = _Reader(func, known, owner)
    found: list[Expr] = []
    try:
        for node in reader.block(definition.body):
            found.append(node)  # noqa: PERF402  # kept when the next one raises
    except (_UnknownError, RecursionError):
        pass
    return merge_text(found)


def parameters_alike(func: Callable[..., Any], calls: Sequence[Arguments]) -> dict[str, Any]:
    """Parameters with one plain value in all calls (whole arguments, state and all), defaults included."""
    signature = inspect.signature(func)
    alike: dict[str, Any] | None = None
    for args, kwargs in calls:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if type(value) in _PLAIN}
        if alike is None:
            alike = given
        alike = {name: value for name, value in alike.items() if name in given and _same(given[name], value)}
    return alike or {}


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


class _Reader:
    """Follows the statements from the top. Each method yields what is certain, and raises `_UnknownError` behind it."""

    def __init__(self, func: Callable[..., Any], known: Mapping[str, Any], owner: object | None) -> None:
        outer = inspect.getclosurevars(func)
        code = func.__code__
        self._locals = dict(known)
        if owner is not None and code.co_varnames:
            self._locals[code.co_varnames[0]] = owner
        self._is_local = frozenset((*code.co_varnames, *code.co_cellvars))
        self._outer = {**outer.builtins, **outer.globals, **outer.nonlocals}

    def block(self, statements: Sequence[ast.stmt]) -> Iterator[Expr]:
        for statement in statements:
            yield from self._statement(statement)

    def _statement(self, statement: ast.stmt) -> Iterator[Expr]:
        match statement:
            case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
                self._forget(statement)
            case ast.AugAssign(ast.Name("s"), ast.Add(), value):
                yield from self._nodes(value)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("s"), role), [value], [])) if role in primitives.ROLES:
                yield RoleBegin(role)
                yield from self._nodes(value)
                yield RoleEnd(role)
            case ast.With([ast.withitem(ast.Call(ast.Attribute(ast.Name("s"), role), [], []), None)], body) if (
                role in primitives.ROLES
            ):
                yield RoleBegin(role)
                yield from self.block(body)
                yield RoleEnd(role)
            case ast.Assign([ast.Name(name)], value) if not _mentions_state(value):
                self._locals.pop(name, None)
                with contextlib.suppress(_UnknownError):  # a value that is not known; nothing was said meanwhile
                    self._locals[name] = self._value(value)
            case _:
                raise _UnknownError

    def _forget(self, statement: ast.stmt) -> None:
        for alias in getattr(statement, "names", ()):
            self._locals.pop(alias.asname or alias.name.partition(".")[0], None)

    def _nodes(self, expression: ast.expr) -> Iterator[Expr]:
        match expression:
            case ast.BinOp(left, ast.Add(), right):
                yield from self._nodes(left)
                yield from self._nodes(right)
            case ast.JoinedStr(parts):
                for part in parts:
                    yield Text(self._formatted(part))
            case ast.Call(function, [value], []) if (role := self._looked_up(_TURNS, function)) is not None:
                yield RoleBegin(role)
                yield from self._nodes(value)
                yield RoleEnd(role)
            case ast.Call(function, [], []) if (mark := self._looked_up(_MARKS, function)) is not None:
                yield mark
            case _:
                yield from _constants(self._value(expression))

    def _looked_up(self, table: Mapping[Any, Any], function: ast.expr) -> Any:
        value = self._value(function)
        return table.get(value) if isinstance(value, types.FunctionType) else None

    def _formatted(self, part: ast.expr) -> str:
        match part:
            case ast.Constant(str(text)):
                return text
            case ast.FormattedValue(expression, -1, None):
                return str(self._plain(expression))
            case ast.FormattedValue(expression, -1, ast.JoinedStr([ast.Constant(str(spec))])):
                return format(self._plain(expression), spec)
        raise _UnknownError

    def _plain(self, expression: ast.expr) -> Any:
        value = self._value(expression)
        if type(value) not in _PLAIN:
            raise _UnknownError
        return value

    def _value(self, expression: ast.expr) -> Any:
        match expression:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                scope = self._locals if name in self._is_local else self._outer
                if name not in scope:
                    raise _UnknownError
                return scope[name]
            case ast.Attribute(base, name):
                return _static_attribute(self._value(base), name)
            case ast.Subscript(base, index):
                return _item(self._value(base), self._plain(index))
            case ast.BinOp(left, ast.Add(), right):
                first, second = self._value(left), self._value(right)
                if type(first) is str and type(second) is str:
                    return first + second
            case ast.JoinedStr(parts):
                return "".join(self._formatted(part) for part in parts)
        raise _UnknownError


def _constants(value: Any) -> Iterator[Expr]:
    nodes = value.nodes if isinstance(value, ExprList) else (Text(value),) if type(value) is str else (value,)
    for node in nodes:
        if not isinstance(node, (Text, RoleBegin, RoleEnd)):
            raise _UnknownError
        yield node


def _static_attribute(base: Any, name: str) -> Any:
    """The attribute, unless reading it would run code of the user's."""
    missing = object()
    if isinstance(base, types.ModuleType) and base.__name__ == "lmnb":
        return getattr(base, name, None)  # it loads its names when they are first used
    value = inspect.getattr_static(base, name, missing)
    plain = isinstance(base, types.ModuleType) or type(value) in _PLAIN
    if value is missing or not plain:
        raise _UnknownError
    return value


def _item(base: Any, index: Any) -> Any:
    if type(base) not in (list, tuple, dict):
        raise _UnknownError
    try:
        return base[index]
    except (LookupError, TypeError):
        raise _UnknownError from None


def _mentions_state(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "s" for node in ast.walk(expression))
