"""The text below `%%lmprog` as Python code: its place in the cell, its syntax errors, its compiled form.

A body is compiled as a function of the state `s` whose other names are the user's globals: assignments land in the
user's namespace, while `s` (also in comprehensions and lambdas) stays this body's own, in the background too.
Knows nothing of runs and models.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import lmnb.language
from lmnb.errors import ProgramError
from lmnb.language.definition import keep_definition

STATE = "s"
_TURNS = {role + end for role in ("system", "user", "assistant") for end in ("", "_begin", "_end")}
STEPS = frozenset({"gen", "gen_int", "gen_string", "select", "image", "video", "separate_reasoning", *_TURNS})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class ProgramSyntaxError(ProgramError):
    """The body of a `%%lmprog` cell is not Python, or uses what a body cannot; shows the line it is in."""

    def __init__(self, message: str, place: str, line: str = "", column: int | None = None) -> None:
        super().__init__(f"{message} ({place})")
        self.message = message
        self.place = place
        self.line = line.rstrip("\n")
        self.column = column  # counts from 1

    def _render_traceback_(self) -> list[str]:
        lines = [f"  {self.place}"]
        if self.line.strip():
            lines.append(f"    {self.line}")
            if self.column is not None and self.column >= 1:
                lines.append("    " + " " * (self.column - 1) + "^")
        return [*lines, f"SyntaxError: {self.message}"]


@dataclass(frozen=True)
class CellText:
    """Where a body stands: `text` is the body, which starts `offset` lines below the cell's first line."""

    text: str
    offset: int
    filename: str
    label: str  # "Cell In[3]"

    def place(self, line: int) -> str:
        return f"{self.label}, line {line}"

    def source_line(self, line: int) -> str:
        """The cell's line of that number (from 1), or "" if it is not one of the body's."""
        lines = self.text.splitlines()
        index = line - 1 - self.offset
        return lines[index] if 0 <= index < len(lines) else ""


def find_offset(cell: str, body: str) -> int:
    """How many lines of `cell` stand above `body`, which ends it; 1 (the magic's own) if it is not found there."""
    text = body.strip("\n")
    start = cell.rfind(text) if text else -1
    if start < 0:
        return 1
    return cell.count("\n", 0, start) - (len(body) - len(body.lstrip("\n")))


def parse(cell: CellText, transform: Callable[[str], str]) -> ast.Module:
    """The body's syntax tree, with the cell's line numbers.

    A body that is Python is taken as it stands. One that is not (it holds `%magic` or `!command` lines)
    goes through `transform`, the shell's own rewriting, which keeps the number of lines.
    """
    above = "\n" * cell.offset
    try:
        tree = ast.parse(above + cell.text, cell.filename)
    except SyntaxError as error:
        try:
            tree = ast.parse(above + transform(cell.text), cell.filename)
        except SyntaxError:
            raise _syntax_error(cell, error) from None
    _refuse_async_and_yield(cell, tree)
    return tree


def compile_cell(cell: CellText, tree: ast.Module, namespace: dict[str, Any]) -> Callable[[Any], Any]:
    """A function of the state that runs the body over `namespace` and returns its last expression's value."""
    _refuse_idle_steps(cell, tree, namespace)
    try:
        compile(tree, cell.filename, "exec", dont_inherit=True)  # a `return` here is an error; in a function it is not
    except SyntaxError as error:
        message = "a body that runs at once cannot `return`; give the cell a name, as in `%%lmprog judge(essay)`"
        raise _syntax_error(cell, error, message if "return" in str(error.msg) else None) from None
    statements = [_plain_assignment(statement) for statement in tree.body]
    last = statements[-1] if statements else None
    if isinstance(last, ast.Expr):
        statements[-1] = ast.copy_location(ast.Return(last.value), last)
    names = sorted(_bound_names(cell, tree) - {STATE})
    if names:
        statements.insert(0, ast.copy_location(ast.Global(names=names), statements[0]))
    function = _define(cell, _signature(cell, "_cell", ""), statements, namespace)
    function.__code__ = function.__code__.replace(co_name="<module>")  # tracebacks then read as any cell's
    return function


def compile_program(
    cell: CellText, tree: ast.Module, name: str, params: str, namespace: dict[str, Any]
) -> Callable[..., Any]:
    """A function `name(s, PARAMS)` with the body, whose globals are `namespace`."""
    _refuse_idle_steps(cell, tree, namespace)
    definition = _signature(cell, name, params)
    function = _define(cell, definition, list(tree.body), namespace)
    function.__module__ = str(namespace.get("__name__", "__main__"))
    keep_definition(function, definition)
    return function


def _signature(cell: CellText, name: str, params: str) -> ast.FunctionDef:
    try:
        definition = ast.parse(f"def {name}({params}): pass").body[0]
        assert isinstance(definition, ast.FunctionDef)
    except SyntaxError as error:
        raise ProgramSyntaxError(
            f"the parameters of {name}({params}) are not Python: {error.msg}", cell.place(max(cell.offset, 1))
        ) from None
    arguments = definition.args
    positional = arguments.posonlyargs + arguments.args
    if not positional or positional[0].arg != STATE:
        first = ast.arg(arg=STATE, annotation=None)
        (arguments.posonlyargs or arguments.args).insert(0, first)
    for node in ast.walk(definition):
        if isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.keyword)):
            node.lineno = node.end_lineno = max(cell.offset, 1)
            node.col_offset = node.end_col_offset = 0
    return definition


def _define(
    cell: CellText, definition: ast.FunctionDef, statements: list[ast.stmt], namespace: dict[str, Any]
) -> FunctionType:
    definition.body = statements or [ast.Pass()]
    module = ast.fix_missing_locations(ast.Module(body=[definition], type_ignores=[]))
    try:
        code: CodeType = compile(module, cell.filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _syntax_error(cell, error) from None
    scratch: dict[str, Any] = {}
    exec(code, namespace, scratch)
    function = scratch[definition.name]
    assert isinstance(function, FunctionType)
    return function


def _bound_names(cell: CellText, tree: ast.Module) -> set[str]:
    """Names that the body binds at its top level (assignments, imports, loops, defs, `del`, `:=`)."""
    table = symtable.symtable(ast.unparse(tree), cell.filename, "exec")
    bound = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    # A `:=` in a comprehension binds around it, which the table of the outer scope does not say.
    return bound | {node.target.id for node in _own_nodes(tree) if isinstance(node, ast.NamedExpr)}


def _plain_assignment(statement: ast.stmt) -> ast.stmt:
    """`x: int = 3` as `x = 3`: an annotated name cannot be global, and nothing reads these annotations."""
    rewritten = _DropAnnotations().visit(statement)
    assert isinstance(rewritten, ast.stmt)
    return rewritten


class _DropAnnotations(ast.NodeTransformer):
    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return node if isinstance(node, _SCOPES) else super().generic_visit(node)


def _refuse_async_and_yield(cell: CellText, tree: ast.Module) -> None:
    for node in _own_nodes(tree):
        if isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)):
            what = "a body is synchronous: run `await ...` in an ordinary cell, or use `async def` for a helper"
        elif isinstance(node, (ast.Yield, ast.YieldFrom)):
            what = "a body cannot `yield`; stream its text with `PROGRAM.run(..., stream=True).text_iter()`"
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            what = "`import *` belongs in an ordinary cell; import the names you need here"
        else:
            continue
        raise ProgramSyntaxError(what, cell.place(node.lineno), cell.source_line(node.lineno), node.col_offset + 1)


def _refuse_idle_steps(cell: CellText, tree: ast.Module, namespace: dict[str, Any]) -> None:
    """`gen("x")` as a statement makes a step that nothing runs."""
    for node in _own_nodes(tree):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            continue
        called = node.value.func
        if not isinstance(called, ast.Name) or called.id not in STEPS:
            continue
        if namespace.get(called.id) is getattr(lmnb.language, called.id):  # and not a function of the user's own
            message = f"{called.id}(...) alone adds nothing to the prompt; write `{STATE} += {called.id}(...)`"
            place = cell.place(node.lineno)
            raise ProgramSyntaxError(message, place, cell.source_line(node.lineno), node.col_offset + 1)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of the body's own scope: not inside functions and classes, but inside comprehensions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension) and child.is_async:
            yield ast.copy_location(ast.Await(value=child.iter), child.iter)
        yield child
        if not isinstance(child, _SCOPES):
            yield from _own_nodes(child)


def _syntax_error(cell: CellText, error: SyntaxError, message: str | None = None) -> ProgramSyntaxError:
    line = error.lineno or cell.offset + 1
    text = cell.source_line(line) or (error.text or "")
    return ProgramSyntaxError(message or error.msg, cell.place(line), text, error.offset)
