"""A program's body that runs in a thread of its own, while others read what it makes."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Body:
    """Tells readers of a state whether more may still come from a body that is not theirs."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None  # None until the body starts
        self.done = False
        self.on_done: Callable[[], None] | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the body still runs, or is yet to run, in another thread than the caller's."""
        return not self.done and self.thread is not threading.current_thread()

    def finish(self) -> None:
        """The body has ended; wake those who wait for it."""
        self.done = True
        if self.on_done is not None:
            self.on_done()
