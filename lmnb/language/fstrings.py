"""F-strings in a body that is traced: recompiled from the source, so that a placeholder in one stays a placeholder.

Python makes text of an f-string at once; here each becomes a call that gives an expression if it has to. Where there
is no source the function is left as it is.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lmnb.errors import ProgramError
from lmnb.language.definition import Definition, definition_of
from lmnb.language.expressions import Expr, ExprList, Text
from lmnb.language.placeholders import Argument, Placeholder, VariableRef
from lmnb.language.source import caller_line

_JOIN = "__lmnb_fstring__"


def with_placeholders(func: Callable[..., Any]) -> Callable[..., Any]:
    """`func` with f-strings that may hold placeholders; line numbers, globals and closure are the same."""
    if not isinstance(func, types.FunctionType):
        return func
    definition = definition_of(func)
    if definition is None:
        return func
    definition.decorator_list = []
    definition.returns = None
    changed = _Rewriter()
    changed.visit(definition)
    if not changed.found:
        return func
    code = _compiled(definition, func)
    cells = dict(zip(func.__code__.co_freevars, func.__closure__ or (), strict=True))
    cells[_JOIN] = types.CellType(_joined)
    twin = types.FunctionType(
        code, func.__globals__, func.__name__, func.__defaults__, tuple(cells[name] for name in code.co_freevars)
    )
    twin.__kwdefaults__ = func.__kwdefaults__
    return twin


class _Rewriter(ast.NodeTransformer):
    found = False

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        if not any(isinstance(part, ast.FormattedValue) for part in node.values):
            return node
        self.found = True
        parts: list[ast.expr] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                spec = self.visit(part.format_spec) if part.format_spec is not None else ast.Constant("")
                parts.append(ast.Tuple([self.visit(part.value), ast.Constant(part.conversion), spec], ast.Load()))
            else:
                parts.append(part)
        return ast.copy_location(ast.Call(ast.Name(_JOIN, ast.Load()), parts, []), node)


def _compiled(definition: Definition, func: types.FunctionType) -> types.CodeType:
    """The function's new code. A function around it makes its outer names free variables, as they were."""
    names = [*func.__code__.co_freevars, _JOIN]
    arguments = ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
    factory = ast.FunctionDef("factory", arguments, [definition], [], None, None)
    if "type_params" in ast.FunctionDef._fields:
        factory.type_params = []  # type: ignore[attr-defined]
    module = ast.fix_missing_locations(ast.Module([factory], []))
    outer = next(c for c in compile(module, func.__code__.co_filename, "exec").co_consts if _is_code(c, "factory"))
    code: types.CodeType = next(c for c in outer.co_consts if _is_code(c, func.__name__))
    return code


def _is_code(value: object, name: str) -> bool:
    return isinstance(value, types.CodeType) and value.co_name == name


def _joined(*parts: str | tuple[Any, int, str]) -> str | Expr:
    """What the f-string of these parts says: text, or an expression if a value is a placeholder."""
    nodes: list[Expr] = []
    for part in parts:
        if isinstance(part, str):
            nodes.append(Text(part))
            continue
        value, conversion, spec = part
        if not isinstance(value, Placeholder):
            nodes.append(Text(format(_converted(value, conversion), spec)))
        elif (conversion in (-1, ord("s"))) and not spec:
            assert isinstance(value, (Argument, VariableRef))
            nodes.append(replace(value, formatted=True))
        else:
            raise ProgramError(
                f"line {caller_line()}: {value!r} is not known before the program runs, so an f-string can only say it "
                "as it is, without a format"
            )
    if all(isinstance(node, Text) for node in nodes):
        return "".join(node.text for node in nodes if isinstance(node, Text))
    return ExprList(tuple(nodes))


def _converted(value: Any, conversion: int) -> Any:
    match chr(conversion) if conversion >= 0 else "":
        case "s":
            return str(value)
        case "r":
            return repr(value)
        case "a":
            return ascii(value)
    return value
