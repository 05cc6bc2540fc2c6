"""The engine requests of one HTTP call: submitted together, their events in one queue, cancelled together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from lmnb.runtime.request import Event, FinishEvent, Request

if TYPE_CHECKING:
    from lmnb.backends.local import Runtime

LOOK_SECONDS = 0.1  # how often a waiting call looks whether its client is still there


class ClientGoneError(Exception):
    """The client has closed its connection; nobody reads the answer."""


class Job:
    """Requests in flight."""

    def __init__(self, runtime: Runtime, requests: Sequence[Request], is_gone: Callable[[], bool]) -> None:
        self._is_gone = is_gone
        self._queue: SimpleQueue[tuple[int, Event]] = SimpleQueue()
        self.aborted = False
        self._handles = []
        try:
            for index, request in enumerate(requests):
                self._handles.append(runtime.submit(request, partial(self._put, index)))
        except BaseException:
            self.cancel()
            raise

    def abort(self) -> None:
        """Cancel because someone asked for it; the call is answered with what there is."""
        self.aborted = True
        self.cancel()

    def cancel(self) -> None:
        """Stop what runs."""
        for handle in self._handles:
            if not handle.done:
                handle.cancel()

    def events(self) -> Iterator[tuple[int, Event]]:
        """Events with the index of their request, to the last one. ClientGoneError when the client has left."""
        pending = len(self._handles)
        looked = time.monotonic()
        while pending:
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                if self._is_gone():
                    raise ClientGoneError
            try:
                index, event = self._queue.get(timeout=LOOK_SECONDS)
            except Empty:
                continue
            pending -= isinstance(event, FinishEvent)
            yield index, event

    def _put(self, index: int, event: Event) -> None:
        self._queue.put((index, event))


@dataclass(frozen=True)
class Answer:
    """A job whose events are told as they come."""

    job: Job
    events: Generator[Any, None, None]

    def close(self) -> None:
        """End it, also if nobody has begun to read."""
        self.events.close()
        self.job.cancel()


class Jobs:
    """The jobs that run, by the id that `/abort_request` names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    @contextmanager
    def running(self, rid: str, job: Job) -> Iterator[None]:
        """While this is open, the job can be aborted; what is not done at the end is cancelled."""
        with self._lock:
            self._jobs[rid] = job
        try:
            yield
        finally:
            with self._lock:
                self._jobs.pop(rid, None)
            job.cancel()

    def abort(self, rid: str) -> int:
        """Abort the jobs whose id begins with `rid` ("" for all); returns how many."""
        with self._lock:
            found = [job for name, job in self._jobs.items() if name.startswith(rid)]
        for job in found:
            job.abort()
        return len(found)
