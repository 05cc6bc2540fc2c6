"""A program on many rows, a bounded number at a time, each row's failure kept in its own state."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from lmnb.errors import ArgumentError
from lmnb.language.call import Call, Home, RunOptions, new_call_branch
from lmnb.language.coroutines import LoopThread
from lmnb.language.interrupts import calm
from lmnb.language.precache import precache
from lmnb.language.progress import Progress
from lmnb.language.row_usage import RowUsage
from lmnb.runtime.argument_checks import whole_number
from lmnb.runtime.handle import forked_error

if TYPE_CHECKING:
    from lmnb.language.program import Program
    from lmnb.language.state import ProgramState

_POLL_SECONDS = 0.1


class Row(NamedTuple):
    """One row: its number, and the program's arguments."""

    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Batch:
    """One execution of a program on rows, as branches of one run."""

    def __init__(
        self,
        program: Program,
        rows: Sequence[Row],
        options: RunOptions,
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        ahead: int | None = None,
    ) -> None:
        self.calls: dict[int, Call] = {}  # by the row's number, as they are begun
        self.usage = RowUsage()
        self._program = program
        self._rows = rows
        self._options = options
        self._progress_bar = progress_bar
        self._ahead = ahead
        self._num_workers = _num_workers(num_threads, len(rows))

    def states(self) -> Iterator[ProgramState]:
        """Yield the finished state of each row, in order; with `ahead`, only so many rows are begun before they are
        read. Left early (an interrupt, an error, a reader that stops), it cancels the rows that are not finished."""
        program = self._program
        home = Home.find(program.name, self._options.backend)
        fork = home.run.next_fork()
        forget = self.usage.follow(home.run, home.branch.id, fork)
        workers = _Workers(program, self._num_workers)
        waiting: deque[Future[ProgramState]] = deque()
        rows = deque(self._rows)
        failure: BaseException | None = None
        process = os.getpid()
        try:
            with Progress(len(rows), program.name, self._progress_bar) as progress:
                precache(program, self._rows, self._options.backend, home.branch)
                while rows or waiting:
                    while rows and (self._ahead is None or len(waiting) < self._ahead):
                        call = self._begin(home, fork, rows.popleft())
                        waiting.append(workers.submit(call, lambda: self._count(progress)))
                    yield _wait(waiting.popleft(), process)
        except BaseException as error:
            failure = error
            calm(error)
            for call in self.calls.values():
                call.branch.cancel.cancel()
            raise
        finally:
            workers.stop()
            home.leave(None if isinstance(failure, GeneratorExit) else failure)
            forget()

    def _begin(self, home: Home, fork: int, row: Row) -> Call:
        branch = new_call_branch(home, self._program.name, fork=fork, index=row.number, row=row.number)
        call = Call(self._program, row.args, row.kwargs, self._options, branch)
        self.calls[row.number] = call
        return call

    def _count(self, progress: Progress) -> None:
        failed = sum(call.finished and call.state.stream.failure is not None for call in list(self.calls.values()))
        progress.count(f"{self.usage.hit_rate:.0%} reused" + (f", {failed} failed" if failed else ""))


class _Workers:
    """Runs calls, so many at a time: plain bodies in threads, coroutines on one loop in a thread of its own."""

    def __init__(self, program: Program, count: int) -> None:
        name = f"lmnb-{program.name}"
        self._threads = None if program.is_async else ThreadPoolExecutor(count, thread_name_prefix=name)
        self._loop = LoopThread(name, count) if program.is_async else None

    def submit(self, call: Call, count: Callable[[], None]) -> Future[ProgramState]:
        """The body, and then all that it has started, so that rows at work are bounded. `count` is called before the
        row is known to be done."""

        def work() -> ProgramState:
            call.execute_quietly()
            call.state.wait_drained()
            call.branch.run.wait_settled(call.branch)
            call.finished = True
            count()
            return call.state

        async def coroutine() -> ProgramState:
            await call.execute_quietly_async()
            await call.state.settled()
            await call.branch.run.settled(call.branch)
            call.finished = True
            count()
            return call.state

        if self._threads is not None:
            return self._threads.submit(copy_context().run, work)
        assert self._loop is not None
        return self._loop.submit(coroutine)

    def stop(self) -> None:
        """Begin no more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._loop is not None:
            self._loop.stop()


def _wait(future: Future[ProgramState], process: int) -> ProgramState:
    """The result of what goes on in that process; interruptible on every platform."""
    while not future.done():
        if os.getpid() != process:
            raise forked_error()
        wait([future], _POLL_SECONDS)
    return future.result()


def _num_workers(num_threads: int | str, num_rows: int) -> int:
    if num_threads == "auto":
        wanted = max(96, 16 * (os.cpu_count() or 1))
    else:
        wanted = whole_number("num_threads, if it is not 'auto',", num_threads)
        if wanted < 1:
            raise ArgumentError(f"num_threads must be 'auto' or a whole number of at least 1, not {wanted}")
    return max(1, min(wanted, num_rows))
