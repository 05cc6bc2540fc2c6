"""`run_batch`: a program on many rows, a bounded number at a time, each row's failure kept in its own state."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

from lmnb.errors import ArgumentError
from lmnb.language.call import Call, Home, RunOptions, new_call_branch
from lmnb.language.coroutines import LoopThread

if TYPE_CHECKING:
    from lmnb.language.program import Program
    from lmnb.language.state import ProgramState

Row = tuple[tuple[Any, ...], dict[str, Any]]

_POLL_SECONDS = 0.1


def run_rows(
    program: Program,
    rows: Sequence[Row],
    options: RunOptions,
    num_threads: int | str,
    progress_bar: bool,
    ahead: int | None,
) -> Iterator[ProgramState]:
    """Yield the finished state of each row, in order; with `ahead`, only so many rows are begun before they are read.

    Left early (an interrupt, an error, a reader that stops), it cancels the rows that are not finished.
    """
    workers = _num_workers(num_threads, len(rows))
    home = Home.find(program.name, options.backend)
    fork = home.run.next_fork()
    calls: list[Call] = []
    waiting: deque[Future[ProgramState]] = deque()
    pool = _Workers(program, workers)
    failure: BaseException | None = None
    bar_lock = threading.Lock()

    def count(bar: _Bar) -> None:
        with bar_lock:
            bar.update(1)

    try:
        with _progress(len(rows), program.name, progress_bar) as bar:

            def begin(index: int) -> None:
                args, kwargs = rows[index]
                branch = new_call_branch(home, program.name, fork=fork, index=index, row=index)
                call = Call(program, args, kwargs, options, branch)
                calls.append(call)
                future = pool.submit(call)
                future.add_done_callback(lambda _: count(bar))
                waiting.append(future)

            begun = 0
            while begun < len(rows) or waiting:
                while begun < len(rows) and (ahead is None or len(waiting) < ahead):
                    begin(begun)
                    begun += 1
                yield _wait(waiting.popleft())
    except BaseException as error:
        failure = error
        for call in calls:
            call.branch.cancel.cancel()
        raise
    finally:
        pool.stop()
        home.leave(None if isinstance(failure, GeneratorExit) else failure)


class _Workers:
    """Runs calls, so many at a time: plain bodies in threads, coroutines on one loop in a thread of its own."""

    def __init__(self, program: Program, count: int) -> None:
        name = f"lmnb-{program.name}"
        self._threads = None if program.is_async else ThreadPoolExecutor(count, thread_name_prefix=name)
        self._loop = LoopThread(name, count) if program.is_async else None

    def submit(self, call: Call) -> Future[ProgramState]:
        """The body, and then all that it has started, so that rows at work are bounded."""

        def work() -> ProgramState:
            call.execute_quietly()
            call.state.wait_drained()
            return call.state

        async def coroutine() -> ProgramState:
            await call.execute_quietly_async()
            await call.state.settled()
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


def _wait(future: Future[ProgramState]) -> ProgramState:
    """The result; interruptible on every platform."""
    while not wait([future], _POLL_SECONDS).done:
        pass
    return future.result()


def _num_workers(num_threads: int | str, num_rows: int) -> int:
    if num_threads == "auto":
        wanted = max(96, 16 * (os.cpu_count() or 1))
    elif isinstance(num_threads, int) and num_threads >= 1:
        wanted = num_threads
    else:
        raise ArgumentError(f"num_threads must be 'auto' or a whole number of at least 1, not {num_threads!r}")
    return min(wanted, num_rows)


class _Bar(Protocol):
    def update(self, n: int) -> Any: ...


def _progress(total: int, name: str, shown: bool) -> AbstractContextManager[_Bar]:
    from tqdm import tqdm  # the plain one: text works in every front end

    bar: AbstractContextManager[_Bar] = tqdm(total=total, desc=name, disable=not shown)
    return bar
