"""Interrupts as their user sees them: in a notebook, a traceback of an interrupt shows the user's own lines only.

Elsewhere, and for debuggers, the exception and its traceback are what they are.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial, wraps
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

# Whose frames are not the user's: ours, the shell's that called the cell, and the library's that we wait in.
_MACHINERY = frozenset(
    ("lmnb", "IPython", "ipykernel", "asyncio", "concurrent", "contextlib", "queue", "selectors", "threading")
)


Arguments = ParamSpec("Arguments")
T = TypeVar("T")


def calm_interrupts(function: Callable[Arguments, T]) -> Callable[Arguments, T]:
    """For what a user calls and may interrupt."""

    @wraps(function)
    def calm_function(*args: Arguments.args, **kwargs: Arguments.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as interrupt:
            calm(interrupt)
            raise

    return calm_function


def calm(error: BaseException) -> None:
    """If `error` is an interrupt, or the cancel that a kernel makes of it in a cell that awaits, have it shown with the
    user's own lines. One that says more keeps its own way."""
    if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)) and not hasattr(error, "_render_traceback_"):
        vars(error)["_render_traceback_"] = partial(_rendered, error)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that are the user's, as a traceback."""
    frames: list[TracebackType] = []
    while trace is not None:
        if _is_users(trace.tb_frame):
            frames.append(trace)
        trace = trace.tb_next
    result: TracebackType | None = None
    for frame in reversed(frames):
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return result


def _is_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _MACHINERY


def _rendered(interrupt: BaseException) -> list[str]:
    """The lines that IPython prints for it."""
    trace = users_part(interrupt.__traceback__)
    shell = sys.modules["IPython"].get_ipython()
    if trace is None or shell is None:
        return [type(interrupt).__name__]
    kind = type(interrupt)
    bare = kind(*interrupt.args)  # without what was being handled when it came
    lines: list[str] = shell.InteractiveTB.structured_traceback(kind, bare, trace, tb_offset=0)
    return lines
