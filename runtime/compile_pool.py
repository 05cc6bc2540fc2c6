"""Threads that compile constraints, each with a time limit. A hostile constraint costs its own request only.

What is Python in a compilation is kept short by limits on what is compiled, since it holds the interpreter's lock; the
libraries let go of it, and run with the lowest priority (`give_way`). They cannot be interrupted: a compilation that
takes too long is given up, and its thread ends when it does. Threads are daemons, so that none of them keeps a process
from ending.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import TypeVar

from lmnb.errors import GrammarError

T = TypeVar("T")


class CompilePool:
    """At most `max_threads` compilations go on at once, given-up ones included; more are refused when all hang."""

    def __init__(self, *, limit_seconds: float, max_threads: int = 8) -> None:
        self._limit = limit_seconds
        self._slots = threading.BoundedSemaphore(max_threads)

    def submit(self, compile: Callable[[], T]) -> Future[T]:
        """Run `compile` in a thread. The future's error is its own, or a GrammarError after the time limit."""
        future: Future[T] = Future()
        threading.Thread(target=self._wait_and_run, args=(compile, future), name="lmnb-grammar", daemon=True).start()
        return future

    def _wait_and_run(self, compile: Callable[[], T], future: Future[T]) -> None:
        if not self._slots.acquire(timeout=self._limit):
            self._fail(future, "other constraints take all the time there is to compile")
            return
        too_long = f"compiling the constraint takes more than {self._limit:g} s; simplify it"
        timer = _running.timer = _Timer(self._limit, lambda: self._fail(future, too_long))
        timer.start()
        try:
            result = compile()
        except BaseException as error:
            with suppress(InvalidStateError):
                future.set_exception(error)
        else:
            with suppress(InvalidStateError):
                future.set_result(result)
        finally:
            timer.stop()
            self._slots.release()

    def _fail(self, future: Future[T], why: str) -> None:
        with suppress(InvalidStateError):
            future.set_exception(GrammarError(why))


class _Timer:
    """Calls `late` once it has run for so many seconds, pauses not counted. For one thread at a time."""

    def __init__(self, seconds: float, late: Callable[[], None]) -> None:
        self._left, self._late = seconds, late
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


class _Running(threading.local):
    timer: _Timer | None = None


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


def give_way(work: Callable[[], T]) -> T:
    """The result of `work`, which must not hold the interpreter's lock: it is done in a thread that runs when no other
    needs the processor. (Were it to hold the lock, all others would wait for a thread that is not given any time.
    Linux only: elsewhere a priority belongs to the whole process.)"""
    if sys.platform != "linux":
        return work()
    done: Future[T] = Future()
    threading.Thread(target=_run_last, args=(work, done), name="lmnb-grammar-library", daemon=True).start()
    return done.result()


def _run_last(work: Callable[[], T], done: Future[T]) -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)
