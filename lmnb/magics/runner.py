"""Runs a compiled body to its end, in front of the user or behind: waiting, interrupts, cancels, and the view's end.

Knows runs and views by what they can do; nothing of cells' text and options.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from lmnb.errors import CancelledError
from lmnb.language.interrupts import calm_interrupts
from lmnb.language.run import Run
from lmnb.runtime import threads
from lmnb.widgets.pin import CellPin

DRAIN_SECONDS = 1.0  # how long a stopped run may take to hand over its partial text

T = TypeVar("T")


class View(Protocol):
    """What shows a run."""

    def display(self, *, background: bool = False) -> None: ...

    def finish(self) -> object: ...


@calm_interrupts
def run_in_front(run: Run, view: View, body: Callable[[], T]) -> T:
    """Run the body and wait for all that it started. Whatever ends the wait, the run is over and shown afterwards.

    Raises what the body raised; CancelledError for a cancelled run; the error of a step that failed;
    KeyboardInterrupt, when the run has been cancelled and drained.
    """
    __tracebackhide__ = True
    view.display()
    try:
        value = _run_body(run, body)
    except KeyboardInterrupt:
        run.cancel()
        run.wait(DRAIN_SECONDS)
        raise
    finally:
        view.finish()
    if run.status == "cancelled":
        raise CancelledError("the run was cancelled; its partial text is kept in the state")
    if run.error is not None:
        raise run.error
    return value


def _run_body(run: Run, body: Callable[[], T]) -> T:
    __tracebackhide__ = True
    try:
        with run.active():
            value = body()
    except BaseException as error:
        run.finish(error)
        raise
    run.finish()
    return value


class BackgroundRuns:
    """Runs that go on while other cells run."""

    def __init__(self) -> None:
        self._running: dict[threading.Thread, Run] = {}

    def start(self, run: Run, view: View, body: Callable[[], object]) -> None:
        """Show the view here, and run the body in a thread whose output belongs to this cell."""
        view.display(background=True)
        thread = threading.Thread(
            target=CellPin().run, args=(_run_quietly, run, body), name="lmnb-background-run", daemon=True
        )
        self.running()  # forgets those that are over
        self._running[thread] = run
        threads.start(thread)

    def running(self) -> list[Run]:
        """Those that are not over."""
        self._running = {thread: run for thread, run in self._running.items() if thread.is_alive()}
        return list(self._running.values())

    def cancel(self) -> int:
        """Cancel every running one and wait until their partial text is in place. Returns how many there were."""
        runs = self.running()
        threads = list(self._running)
        for run in runs:
            run.cancel()
        for thread in threads:
            thread.join(DRAIN_SECONDS)
        return len(runs)


def _run_quietly(run: Run, body: Callable[[], object]) -> None:
    try:
        _run_body(run, body)
    except BaseException:
        # The run holds it: the view and whoever reads the state show it. A report from here would land
        # in whatever cell runs by then.
        return
