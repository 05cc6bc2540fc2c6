"""A program's body that runs in a thread or task of its own, while others read what it makes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Body:
    """Tells readers of a state whether more may still come from a body that is not theirs."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None  # None until the body starts
        self.task: asyncio.Task[None] | None = None  # if it runs on an event loop: kept, as loops hold tasks weakly
        self.loop: asyncio.AbstractEventLoop | None = None
        self.done = False
        self._process = os.getpid()
        self.on_done: Callable[[], None] | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the body still runs, or is yet to run, and the caller is no part of it."""
        return not self.done and self.thread is not threading.current_thread() and self not in _inside.get()

    @property
    def left_behind(self) -> bool:
        """Whether it runs in the process from which the caller's was forked."""
        return self.elsewhere and os.getpid() != self._process

    @property
    def needs_this_thread(self) -> bool:
        """Whether the body cannot go on while the caller blocks its thread."""
        return self.loop is not None and not self.done and asyncio._get_running_loop() is self.loop

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is called while this is open, in tasks of its own too, is a part of the body."""
        token = _inside.set((*_inside.get(), self))
        try:
            yield
        finally:
            _inside.reset(token)

    def finish(self) -> None:
        """The body has ended; wake those who wait for it."""
        self.done = True
        if self.on_done is not None:
            self.on_done()


_inside: ContextVar[tuple[Body, ...]] = ContextVar("lmnb_bodies", default=())
