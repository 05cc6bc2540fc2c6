"""The source of a program's function, as a syntax tree."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef

_KEPT = "__lmnb_definition__"


def keep_definition(func: Callable[..., Any], definition: Definition) -> None:
    """Remember the tree that `func` was compiled from, where no text holds its `def` line (a cell's body)."""
    setattr(func, _KEPT, definition)


def definition_of(func: Callable[..., Any]) -> Definition | None:
    """The function's definition with the line numbers of its file or cell, the caller's to change; None if there is
    no source."""
    kept = getattr(func, _KEPT, None)
    if kept is not None:
        own: Definition = copy.deepcopy(kept)
        return own
    try:
        lines, first = inspect.getsourcelines(func)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    ast.increment_lineno(tree, first - 1)
    found = tree.body[0] if tree.body else None
    return found if isinstance(found, Definition) else None
