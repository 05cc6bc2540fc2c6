"""The run whose body a thread, or a task, is executing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from lmnb.language.branch import Branch

if TYPE_CHECKING:
    from lmnb.language.run import Run

_current: ContextVar[Branch | None] = ContextVar("lmnb_current_branch", default=None)


@contextmanager
def executing(branch: Branch) -> Iterator[None]:
    """While this is open, programs that this thread (or task) runs join the branch's run, below it."""
    token = _current.set(branch)
    try:
        yield
    finally:
        _current.reset(token)


def current_run() -> Run | None:
    """The run whose body this thread (or task) is executing."""
    branch = _current.get()
    return None if branch is None else branch.run


def current_branch() -> Branch | None:
    """The branch of that run below which calls of programs go."""
    branch = _current.get()
    return None if branch is None or branch.run.status != "running" else branch
