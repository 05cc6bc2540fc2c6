"""Runs a function in another thread as if the cell that was captured had called it.

ipykernel gives the output of a thread to whichever message came last, a button click included. Pinning hands
the captured cell's message to the thread, by the way that each ipykernel version offers.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, TypeVar

from lmnb.widgets.detect import current_shell

T = TypeVar("T")


class CellPin:
    """The cell that is running now. Create it in the main thread."""

    def __init__(self) -> None:
        self._shell: Any = current_shell()
        get_parent = getattr(self._shell, "get_parent", None)
        self._parent = get_parent() if callable(get_parent) else None
        self._context = contextvars.copy_context()

    def run(self, function: Callable[..., T], *args: object) -> T:
        """`function(*args)`, with its output going to the captured cell."""
        set_parent = getattr(self._shell, "set_thread_parent", None)  # ipykernel >= 7.4
        if set_parent is not None and self._parent is not None:
            token = set_parent(self._parent)
            try:
                return function(*args)
            finally:
                self._shell.reset_thread_parent(token)
        # A context cannot be entered twice, and two threads may pin to one cell.
        return self._context.copy().run(function, *args)
