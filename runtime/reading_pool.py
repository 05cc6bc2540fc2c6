"""Reads constraints so that nothing else in this process waits for it: large ones in processes of their own.

Reading is Python, and Python of one thread holds up all others. A process is started for the first large constraint,
and kept for the next; several that come at once have one each. One that takes too long is killed. Processes are plain
subprocesses, told by pipes: nothing is forked, and no `__main__` imported again, so that they work in notebooks on
every platform. They are in a process group of their own, so that an interrupt of the notebook's kernel is not theirs,
and end when this process does.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import IO, Any

from lmnb.errors import GrammarError
from lmnb.runtime.compile_pool import LOW_PRIORITY, seconds_left, time_limit, untimed
from lmnb.runtime.constraint_size import is_small
from lmnb.runtime.grammar_reading import Reading, read_constraint
from lmnb.runtime.reading_worker import SIZE_BYTES
from lmnb.runtime.request import Constraint
from lmnb.runtime.working_folder import ALWAYS_THERE

_USUAL_SECONDS = 10.0  # where no engine says how long a compilation may take
_START_SECONDS = 60.0  # imports, from a slow disk
_MOST_ALONE_SECONDS = 1.0  # that the next process waits for one to run
_MOST_IDLE = 2
_IDLE_SECONDS = 60.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.1  # short waits let a KeyboardInterrupt through on every platform
_CLOSED = "the engine was closed while the constraint was compiled"
# It says that it runs. The path is this process's, whatever changed it; then the program's one line.
_PROGRAM = """
import json, os, sys
os.write(1, b".")
sys.path[:] = json.loads(sys.argv[1])
from lmnb.runtime.reading_worker import main
main()
"""
_RUNS = b"."

# A process is started with the interpreter held until the new program is there, and Python's own beginning takes a
# processor: of several at once, the engine's threads would wait for all of them. So the next is started when one runs.
_starting = threading.Lock()


class _NoProcessError(Exception):
    """A process could not be started; why."""


class ReadingProcess:
    """One process. It answers one question at a time."""

    def __init__(self) -> None:
        """Raises _NoProcessError."""
        path = _whole_path()
        if not sys.executable:
            raise _NoProcessError("Python does not know its own program")
        self.ended = False
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._runs = threading.Event()
        with _starting:
            self._start(path)
            self._or_end(self._let_run)
        try:
            self._or_end(partial(self._next, time.monotonic() + _START_SECONDS))
        except (EOFError, TimeoutError):
            raise _NoProcessError(f"{sys.executable} ended before it could import lmnb") from None

    def _start(self, path: list[str]) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd=ALWAYS_THERE,  # not this process's folder, which may have been deleted
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                **_apart(),
            )
        except (OSError, ValueError) as error:
            raise _NoProcessError(str(error)) from None
        if hasattr(os, "setpriority"):  # others have the processor first, from its beginning on
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.pid, LOW_PRIORITY)

    def _let_run(self) -> None:
        listener = threading.Thread(target=self._listen, name="lmnb-reading", daemon=True)
        try:
            listener.start()
        except RuntimeError:  # there may be no more threads
            assert self._process.stdout is not None
            self._process.stdout.close()
            raise
        self._runs.wait(_MOST_ALONE_SECONDS)

    def _or_end(self, wait: Callable[[], object]) -> None:
        """`wait`, or leave no process behind."""
        try:
            wait()
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, constraint: Constraint, seconds: float) -> Reading:
        """Raises what the process answers with, TimeoutError, or EOFError if it is there no more. After any but the
        first it is of no more use."""
        assert self._process.stdin is not None
        question = memoryview(pickle.dumps(constraint))
        try:
            while question:
                question = question[self._process.stdin.write(question) :]
        except (OSError, ValueError):
            raise EOFError from None
        answer = self._next(time.monotonic() + seconds)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Reading)
        return answer

    def end(self) -> None:
        """Kill it, and leave nothing of it behind. Idempotent."""
        self.ended = True
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()  # the other pipe is closed by the thread that reads it

    def disown(self) -> None:
        """In a fork of the process that started it: have nothing to do with it."""
        self._process.returncode = 0  # not this process's to wait for
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _next(self, latest: float) -> Any:
        while True:
            left = latest - time.monotonic()
            try:
                answer = self._answers.get(timeout=max(0.0, min(left, _POLL_SECONDS)))
            except Empty:
                if left <= 0:
                    raise TimeoutError from None
                continue
            if isinstance(answer, EOFError):
                raise answer
            return answer

    def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        try:
            if _exactly(stream, len(_RUNS)) != _RUNS:  # not the program that was started
                raise EOFError
            self._runs.set()
            while True:
                size = int.from_bytes(_exactly(stream, SIZE_BYTES), "big")
                self._answers.put(pickle.loads(_exactly(stream, size)))
        except Exception:  # the process has ended, maybe within an answer
            self._answers.put(EOFError())
            self._runs.set()  # it never will; nobody need wait for it
            stream.close()


def _whole_path() -> list[str]:
    """`sys.path` for a process in another folder. A folder that has been deleted holds nothing to import."""
    try:
        return [os.path.abspath(entry) for entry in sys.path]
    except FileNotFoundError:
        return [entry for entry in sys.path if os.path.isabs(entry)]


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = stream.read(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _apart() -> dict[str, Any]:
    """Options for a process that the terminal's and the kernel's interrupts do not reach."""
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        return {"creationflags": flags | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
    return {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


class ReadingPool:
    """Thread-safe. Its processes end with `close`, when it is let go of, and when they have been idle for a while."""

    def __init__(self) -> None:
        self._start_empty()
        weakref.finalize(self, _end, self._processes)
        _pools.add(self)

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[ReadingProcess] = set()
        self._idle: list[ReadingProcess] = []
        self._timer: threading.Timer | None = None
        self._num_closed = 0  # how often `close` was called

    @property
    def pids(self) -> list[int]:
        """Of the processes that there are."""
        with self._lock:
            return [process.pid for process in self._processes]

    def read(self, constraint: Constraint) -> Reading:
        """`read_constraint`, wherever it holds nobody up; what comes from a process has been compiled there. Also
        GrammarError if that took more than is left of the compilation's time, or too much memory."""
        if is_small(constraint):
            return read_constraint(constraint)
        for attempt in (1, 2):  # an idle process may have been ended from outside while nobody looked
            try:
                process = self._take()
            except _NoProcessError as error:
                _tell_once(str(error))
                return read_constraint(constraint)
            try:
                reading = process.ask(constraint, seconds_left(_USUAL_SECONDS))
            except GrammarError:
                self._give(process)
                raise
            except TimeoutError:  # an engine's compilation may have told that already
                self._drop(process)
                raise GrammarError(
                    f"compiling the constraint takes more than {time_limit(_USUAL_SECONDS):g} s; simplify it"
                ) from None
            except EOFError:
                closed = process.ended
                self._drop(process)
                if closed:
                    raise GrammarError(_CLOSED) from None
                if attempt == 2:
                    raise GrammarError(
                        "the process that compiles the constraint ended before it was done, twice; it may need too "
                        "much memory: simplify it"
                    ) from None
            except BaseException:  # an interrupt, or what the process failed with
                self._drop(process)
                raise
            else:
                self._give(process)
                return reading
        raise AssertionError("the second attempt returns or raises")

    def close(self) -> None:
        """End the processes, and fail what they are at. The next constraint would start one again."""
        with self._lock:
            self._num_closed += 1
            self._stop_timer()
            processes = [*self._processes]
            self._idle.clear()
        for process in processes:
            self._drop(process)

    def disown(self) -> None:
        """In a fork of this process, which has no part in what was started before it."""
        processes = [*self._processes]
        self._start_empty()
        for process in processes:
            process.disown()

    def _take(self) -> ReadingProcess:
        with self._lock:
            self._stop_timer()
            if self._idle:
                return self._idle.pop()
            num_closed = self._num_closed
        with untimed():
            process = ReadingProcess()
        with self._lock:
            if num_closed == self._num_closed:
                self._processes.add(process)
                return process
        process.end()
        raise GrammarError(_CLOSED)

    def _give(self, process: ReadingProcess) -> None:
        """It has answered: keep it for a while, unless there are enough."""
        with self._lock:
            kept = len(self._idle) < _MOST_IDLE and not process.ended
            if kept:
                self._idle.append(process)
                self._stop_timer()
                self._timer = threading.Timer(_IDLE_SECONDS, _close_idle, (weakref.ref(self),))
                self._timer.daemon = True
                self._timer.start()
        if not kept:
            self._drop(process)

    def _drop(self, process: ReadingProcess) -> None:
        process.end()
        with self._lock:
            self._processes.discard(process)

    def close_idle(self) -> None:
        """End the processes that nobody waits for."""
        with self._lock:
            processes, self._idle = self._idle, []
        for process in processes:
            self._drop(process)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _close_idle(reference: weakref.ref[ReadingPool]) -> None:
    pool = reference()
    if pool is not None:
        pool.close_idle()


def _end(processes: set[ReadingProcess]) -> None:
    for process in processes:
        process.end()


_told: list[str] = []


def _tell_once(why: str) -> None:
    if not _told:
        _told.append(why)
        warnings.warn(
            f"lmnb reads large constraints in this process, where they hold up what else it does: {why}",
            RuntimeWarning,
            stacklevel=2,
        )


_pools: weakref.WeakSet[ReadingPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _disown_all() -> None:
    global _starting
    _starting = threading.Lock()  # whoever held it is not in the fork
    for pool in list(_pools):
        pool.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
