"""Runs: what views follow and users cancel. A run is a tree of branches, its events in order, and one cancel token.

Knows nothing of what the branches do; events are published on the background loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from lmnb.backends.base import Backend, CancelToken
from lmnb.backends.unpicklable import Unpicklable
from lmnb.errors import CancelledError
from lmnb.language import arguments
from lmnb.language.body import Body
from lmnb.language.branch import Branch
from lmnb.language.current_run import executing
from lmnb.language.events import (
    BranchFinished,
    BranchOpened,
    RunEvent,
    RunFinished,
    RunResumed,
    RunStarted,
    Status,
    well_formed_event,
)
from lmnb.language.interrupts import calm_interrupts
from lmnb.language.loop import background
from lmnb.language.run_observers import tell_observers
from lmnb.language.saved_run import SavedRun, saved
from lmnb.language.unfinished import unfinished
from lmnb.language.variables import Failure
from lmnb.language.waiting import Signal

if TYPE_CHECKING:
    from lmnb.language.generated import Generated
    from lmnb.language.run_diff import RunDiff

logger = logging.getLogger("lmnb")

MOST_KEPT = 1000  # generations that a run holds on to
STOP_SECONDS = 1.0  # how long `finish` waits for a run that was stopped, should a backend not let go


class Run(Unpicklable):
    """One execution that is shown, and cancelled, as a whole: a cell, a program's run, a batch.

    `background`: the body runs in another thread, so that readers of the state wait for its end too, and an
    interrupt of a reader in the main thread leaves the run alone.
    """

    _instead = "save it with run.save('run.json'), or take run.saved(), which can be pickled"

    def __init__(
        self,
        program: str,
        backend: Backend,
        *,
        cell: str | None = None,
        background: bool = False,
        announce: bool = True,
    ) -> None:
        self.id = secrets.token_hex(4)
        self.program = program
        self.backend = backend
        self.cell = cell
        self.background = background
        self.body = Body() if background else None
        self.cancel_token = CancelToken()
        self.root = Branch(run=self, id=0, parent=None, label="0", program=program, cancel=self.cancel_token)
        self.error: BaseException | None = None  # what ended the run, if it failed
        self._status: Status = "running"
        self._started = time.monotonic()
        self._outcome: RunFinished | None = None  # how it ended before it was resumed
        self._events: list[RunEvent] = []
        self._callbacks: dict[int, Callable[[RunEvent], None]] = {}
        self._keys = itertools.count()  # of the callbacks
        self._signal = Signal()
        self._lock = threading.Lock()
        self._num_active = 0  # streams with steps to do, and bodies in threads of their own
        self._closed = False  # nothing more will be started from the body
        self._ending = False
        self._num_branches = 1
        self._num_forks = 0
        self._num_variants: dict[int, int] = {}  # by branch: those that part from inside its generations
        # By branch and number: what can be gone on from. The first ones are kept; of a great batch's many rows, the
        # rest only as long as somebody has their states.
        self.generated: WeakValueDictionary[tuple[int, int], Generated] = WeakValueDictionary()
        self._kept: list[Generated] = []
        self._open: dict[int, Branch] = {0: self.root}
        unfinished.add(self)
        self.post(RunStarted(self.id, program, backend.name, time.time(), cell))
        self._announced = False
        if announce:
            self.announce()

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.program!r}, {self._status})"

    # What views and users do

    @property
    def status(self) -> Status:
        """ "running" until `RunFinished` was published."""
        return self._status

    @property
    def at_work(self) -> bool:
        """Whether anything of the run goes on: a stream, or a body in a thread of its own."""
        body_runs = self.body is not None and not self.body.done
        works = self._num_active > 0 or body_runs
        return self._status == "running" and works and not self._signal.left_behind

    @property
    def events(self) -> tuple[RunEvent, ...]:
        """What has been published so far."""
        return tuple(self._events)

    @property
    def num_events(self) -> int:
        """How many have been published."""
        return len(self._events)

    def subscribe(self, callback: Callable[[RunEvent], None]) -> Callable[[], None]:
        """Call `callback` with every event: first the past ones, then each as it comes, none lost or doubled.

        It is always called on the background loop's thread, and must be quick and never wait. The past events have
        been delivered when this returns. Returns what ends the subscription. An error in a callback is logged.
        ArgumentError for what cannot be called.
        """
        arguments.callback("subscribe", "event", callback)
        key = next(self._keys)

        def start() -> None:
            for event in self._events:
                _deliver(callback, event)
            self._callbacks[key] = callback

        def end() -> None:
            self._callbacks.pop(key, None)

        background.call(start)
        return end

    def cancel(self) -> None:
        """Stop every generation of the run; what is there so far is kept. Returns at once."""
        self.cancel_token.cancel()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.cancel_token.cancelled

    @calm_interrupts
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over; False if `timeout` seconds went by first. Interruptible."""
        return self._signal.wait(lambda: self._status != "running", timeout)

    def settle(self, timeout: float) -> bool:
        """Wait until the run is over or, if its body is still open, idle; False if `timeout` seconds went by first."""
        return self._signal.wait(lambda: self._status != "running" or not (self.at_work or self._closed), timeout)

    def saved(self) -> SavedRun:
        """The run up to now, as it is saved: apart from its backend, and without secrets. What was begun before the
        call, as a branch is, is in it."""
        return SavedRun.of(background.call(lambda: self.events))  # behind what was posted

    def to_json(self) -> str:
        """The run up to now as a JSON document, which `lmnb.replay` shows without a model."""
        return self.saved().to_json()

    def to_html(self) -> str:
        """The run's view up to now as one page that needs neither kernel nor network."""
        return self.saved().to_html()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_json` or `to_html` to `path`, as its ending says: .json or .html. Returns the path."""
        return self.saved().save(path)

    def diff(self, other: Any) -> RunDiff:
        """How `other` (a run, a saved run, or a state, which is waited for) differs from this one."""
        that = saved(other)  # may wait; the two may be one run
        return self.saved().diff(that)

    def announce(self) -> None:
        """Tell those who asked by `on_run` of this run, once."""
        if self._announced:
            return
        self._announced = True
        tell_observers(self)

    # What the owner of a body does

    @contextmanager
    def active(self, branch: Branch | None = None) -> Iterator[None]:
        """While this is open, programs that this thread runs join this run as branches below `branch`."""
        if branch is None and self.body is not None:
            self.body.thread = threading.current_thread()
        with executing(branch or self.root):
            yield

    def close(self, error: BaseException | None = None) -> None:
        """Say that the body has ended; the run is over when its branches are. With an `error` they are stopped."""
        with self._lock:
            self._closed = True
            if error is not None and self.error is None:
                self.error = error
                self.root.stopped = self.root.stopped or Failure.of_body(error, cancelled=self.cancelled)
        if error is not None:
            self.cancel()
        if self.body is not None:
            self.body.finish()
        self._end_if_idle()

    def finish(self, error: BaseException | None = None) -> None:
        """`close`, and wait until every branch is done and `RunFinished` is out.

        A run that failed or was cancelled is waited for at most a second. An interrupt while waiting cancels.
        """
        self.close(error)
        try:
            while not self.wait(0.1):
                if self.cancelled:
                    self.wait(STOP_SECONDS)
                    return
        except KeyboardInterrupt:
            self.cancel()
            raise

    # What branches and streams do

    def post(self, event: RunEvent) -> None:
        """Publish from any thread, after everything that was posted before."""
        background.post(lambda: self.publish(event))

    def publish(self, event: RunEvent) -> None:
        """Publish. On the background loop only."""
        assert background.is_current()
        event = well_formed_event(event)
        self._events.append(event)
        for callback in list(self._callbacks.values()):
            _deliver(callback, event)

    def enter(self, branch: Branch | None = None) -> bool:
        """Count something that goes on in the run; False if it (or the branch) is over."""
        with self._lock:
            if self._ending or (branch is not None and branch.closed):
                return False
            if not self._num_active:  # nothing goes on in a process from which this one was forked
                self._signal.renew()
            self._count(branch, 1)
            return True

    def leave(self, branch: Branch | None = None) -> None:
        """Undo one `enter`."""
        with self._lock:
            self._count(branch, -1)
        self._end_if_idle()
        self._signal.notify()

    def _count(self, branch: Branch | None, change: int) -> None:
        self._num_active += change
        for above in branch.path() if branch is not None else ():
            above.num_active += change

    def note_generation(self, generated: Generated) -> Generated:
        """Let others find a generation that has begun. On the background loop only."""
        self.generated[generated.branch.id, generated.number] = generated
        if len(self._kept) < MOST_KEPT:
            self._kept.append(generated)
        return generated

    def enter_again(self) -> None:
        """`enter`, also if the run is over: it then goes on, as one run with what was before, and ends as it did."""
        while not self.enter():
            self.wait()  # its end may be on its way
            with self._lock:
                if self._status == "running":
                    continue  # another thread was faster
                self._ending, self._status = False, "running"
                self._started = time.monotonic()
                self.cancel_token = CancelToken()
                self.post(RunResumed(time.time()))
            unfinished.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the body goes on, so that more may be started from it."""
        return not self._closed

    def wait_settled(self, branch: Branch) -> None:
        """Wait until no stream is at work in `branch` or below it."""
        self._signal.wait(lambda: branch.num_active == 0)

    async def settled(self, branch: Branch) -> None:
        """`wait_settled` for a coroutine."""
        await self._signal.wait_async(lambda: branch.num_active == 0)

    def next_fork(self) -> int:
        """The number of a new fork."""
        with self._lock:
            self._num_forks += 1
            return self._num_forks - 1

    def new_branch(
        self,
        parent: Branch,
        *,
        index: int,
        fork: int,
        cancel: CancelToken,
        program: str | None = None,
        row: int | None = None,
        at: list[int] | None = None,
        note: str | None = None,
        given: str | None = None,
    ) -> Branch:
        """Number a new branch; `open_branch` makes it known. `at`, `note`, `given`: see `BranchOpened`."""
        with self._lock:
            number = self._num_branches
            self._num_branches += 1
            label = f"{parent.label}.{index}"
            if at is not None:
                variant = self._num_variants[parent.id] = self._num_variants.get(parent.id, 0) + 1
                label = f"{parent.label}~{variant}"
        branch = Branch(
            run=self,
            id=number,
            parent=parent,
            label=label,
            program=program or parent.program,
            cancel=cancel,
            row=parent.row if row is None else row,
        )
        branch.opened = BranchOpened(number, parent.id, index, fork, label, program, row, at, note, given)
        return branch

    def open_branch(self, branch: Branch) -> None:
        """Publish the branch. On the background loop only."""
        assert branch.opened is not None
        self._open[branch.id] = branch
        self.publish(branch.opened)

    def close_branch(self, branch: Branch) -> None:
        """Publish the end of the branch, once. On the background loop only."""
        with self._lock:
            branch.closed = True
        if self._open.pop(branch.id, None) is not None:
            message = str(branch.error) if branch.error is not None else None
            self.publish(BranchFinished(branch.id, branch.status, message))

    def _end_if_idle(self) -> None:
        with self._lock:
            if not self._closed or self._num_active or self._ending:
                return
            self._ending = True
            self._signal.renew()
        background.post(self._end)

    def _end(self) -> None:
        for branch in list(self._open.values()):
            self.close_branch(branch)
        if self.error is None and self.root.status == "failed":
            self.error = self.root.error
        status: Status = "done"
        stopped = isinstance(self.error, (CancelledError, KeyboardInterrupt, asyncio.CancelledError))
        if stopped or (self.error is None and self.cancelled):
            status, self.error = "cancelled", None
        elif self.error is not None:
            status = "failed"
        message = str(self.error) or type(self.error).__name__ if self.error is not None else None
        seconds = time.monotonic() - self._started
        end = RunFinished(status, seconds, message)
        if self._outcome is not None:
            end = replace(self._outcome, seconds=self._outcome.seconds + seconds)
        self._outcome = end
        self.publish(end)
        unfinished.discard(self)  # before the status, which lets another thread enter the run again, and add it
        self._status = end.status
        self._signal.notify()


def _deliver(callback: Callable[[RunEvent], None], event: RunEvent) -> None:
    try:
        callback(event)
    except Exception:  # a broken view must not break the run
        logger.exception("a subscriber of a run failed on %r", event)
