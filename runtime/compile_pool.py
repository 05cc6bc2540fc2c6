"""Threads that compile constraints, each with a time limit. A hostile constraint costs its own request only.

What holds the interpreter's lock for long is done in another process (`reading_pool.py`); the libraries let go of it,
and run with a low priority (`give_way`). They cannot be interrupted: a compilation that takes too long is given
up, and its thread ends when it does. Threads are daemons, so that none of them keeps a process from ending.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lmnb.errors import GrammarError
from lmnb.runtime.process_end import awaited

T = TypeVar("T")

# Of what compiles: a tenth of a processor that others want as well. The lowest, 19, would be a seventieth, for which
# ordinary constraints wait ten seconds beside two busy threads.
LOW_PRIORITY = 10


@dataclass(slots=True, eq=False)
class _Job:
    compile: Callable[[], Any]
    future: Future[Any]
    is_over: bool = False
    given_up: bool = False


class CompilePool:
    """At most `max_threads` compilations go on at once, given-up ones included; the others wait, as long as they have
    to, unless all that go on are given up and none of them ends."""

    def __init__(self, *, limit_seconds: float, max_threads: int = 8) -> None:
        self._limit, self._max_threads = limit_seconds, max_threads
        self._lock = threading.Lock()
        self._queue: deque[_Job] = deque()
        self._num_threads = 0
        self._num_stuck = 0  # of the threads, with a compilation that was given up
        self._num_ended = 0  # compilations

    def submit(self, compile: Callable[[], T]) -> Future[T]:
        """Run `compile` in a thread. The future's error is its own, or a GrammarError after the time limit.
        RuntimeError where a process may have no more threads."""
        job = _Job(compile, Future())
        with self._lock:
            if not self._queue:  # else a thread is on its way, which starts the next one
                self._start_thread()
            self._queue.append(job)
            if self._num_stuck == self._max_threads:
                self._watch([job])
        return job.future

    def _start_thread(self) -> None:
        """One more, if there may be. Starting takes the caller's time, the engine's for one: of many it starts one, and
        each of these another."""
        if self._num_threads == self._max_threads:
            return
        try:
            threading.Thread(target=self._run, name="lmnb-grammar", daemon=True).start()
        except RuntimeError:
            if not self._num_threads:
                raise
            return  # one of the others will do it
        self._num_threads += 1

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._work(job)

    def _next(self) -> _Job | None:
        with self._lock:
            if self._queue:
                job = self._queue.popleft()
                if self._queue:
                    self._start_thread()
                return job
            self._num_threads -= 1
            return None

    def _work(self, job: _Job) -> None:
        timer = _running.timer = _Timer(self._limit, lambda: self._give_up(job))
        timer.start()
        try:
            with awaited():
                result = job.compile()
        except BaseException as error:
            with suppress(InvalidStateError):
                job.future.set_exception(error)
        else:
            with suppress(InvalidStateError):
                job.future.set_result(result)
        finally:
            timer.stop()
            with self._lock:
                job.is_over = True
                self._num_ended += 1
                self._num_stuck -= job.given_up

    def _give_up(self, job: _Job) -> None:
        with self._lock:
            if job.is_over or job.given_up:
                return
            job.given_up = True
            self._num_stuck += 1
            if self._num_stuck == self._max_threads:
                self._watch(list(self._queue))
        _fail(job, f"compiling the constraint takes more than {self._limit:g} s; simplify it")

    def _watch(self, waiting: list[_Job]) -> None:
        """Refuse those that wait if no compilation ends within the time limit."""
        timer = threading.Timer(self._limit, self._refuse, (waiting, self._num_ended))
        timer.daemon = True
        timer.start()

    def _refuse(self, waiting: list[_Job], num_ended: int) -> None:
        with self._lock:
            if self._num_ended != num_ended:
                return
            for job in waiting:
                self._queue.remove(job)  # nothing has been taken from there meanwhile
        for job in waiting:
            _fail(job, "other constraints take all the time there is to compile")


def _fail(job: _Job, why: str) -> None:
    with suppress(InvalidStateError):
        job.future.set_exception(GrammarError(why))


class _Timer:
    """Calls `late` once it has run for so many seconds, pauses not counted. For one thread at a time."""

    def __init__(self, seconds: float, late: Callable[[], None]) -> None:
        self.seconds, self._left, self._late = seconds, seconds, late
        self._started = 0.0
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        self._started = time.monotonic()
        self._timer = threading.Timer(self._left, self._late)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._left = max(0.0, self._left - (time.monotonic() - self._started))

    @property
    def left(self) -> float:
        """Seconds until it is late, while it runs."""
        return max(0.0, self._left - (time.monotonic() - self._started))


class _Running(threading.local):
    timer: _Timer | None = None
    seconds_elsewhere = 0.0  # processor time of what other threads have done for this one


_running = _Running()


@contextmanager
def untimed() -> Iterator[None]:
    """What a compilation does in here is not its constraint's fault and does not count: importing a library, say."""
    timer = _running.timer
    if timer is None:
        yield
        return
    timer.stop()
    try:
        yield
    finally:
        timer.start()


def time_limit(otherwise: float) -> float:
    """How many seconds the compilation that goes on in this thread may take; `otherwise` if none does."""
    return otherwise if _running.timer is None else _running.timer.seconds


def seconds_left(otherwise: float) -> float:
    """How long the compilation that goes on in this thread may take yet; `otherwise` if none does."""
    return otherwise if _running.timer is None else _running.timer.left


# The libraries go down into a grammar by calls: a rule of a rule of a rule ... would end the process on a usual stack.
# This is address space; as much of it is touched as is needed.
_STACK_BYTES = 256 << 20
_stack_lock = threading.Lock()


def give_way(work: Callable[[], T]) -> T:
    """The result of `work`, which must not hold the interpreter's lock: it is done in a thread that has a large stack,
    and runs when no other needs the processor. (Were it to hold the lock, all others would wait for a thread that is
    not given any time. Linux only: elsewhere a priority belongs to the whole process.)"""
    done: Future[tuple[T, float]] = Future()
    thread = threading.Thread(target=_run_last, args=(work, done), name="lmnb-grammar-library", daemon=True)
    with _stack_lock:
        usual = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    result, seconds = done.result()
    _running.seconds_elsewhere += seconds
    return result


def processor_seconds() -> float:
    """The processor time of the calling thread, and of what `give_way` has done for it."""
    return time.thread_time() + _running.seconds_elsewhere


def _run_last(work: Callable[[], T], done: Future[tuple[T, float]]) -> None:
    with suppress(OSError):
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
    try:
        with awaited():
            result = work()
        done.set_result((result, time.thread_time()))
    except BaseException as error:
        done.set_exception(error)
