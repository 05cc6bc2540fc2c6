"""The engine requests of one HTTP call: submitted together, their events in one queue, cancelled together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
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
        self._constraints = [request.sampling.constraint for request in requests]
        self._queue: SimpleQueue[tuple[int, Event]] = SimpleQueue()
        self._held: deque[tuple[int, Event]] = deque()  # taken from the queue, and not told yet
        self._num_pending = len(requests)  # have not told their last event
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

    def begin(self) -> None:
        """Wait until it is known that all of it can be generated: for the first event of a request of each constraint.
        Raises the error of one that was refused before that, and ClientGoneError when the client has left."""
        unknown = set(self._constraints)
        for index, event in self._taken():
            self._held.append((index, event))
            if isinstance(event, FinishEvent) and event.error is not None:
                raise event.error
            unknown.discard(self._constraints[index])
            if not unknown:
                return

    def events(self) -> Iterator[tuple[int, Event]]:
        """Events with the index of their request, to the last one. ClientGoneError when the client has left."""
        while self._held:
            yield self._held.popleft()
        yield from self._taken()

    def _taken(self) -> Iterator[tuple[int, Event]]:
        looked = time.monotonic()
        while self._num_pending:
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                if self._is_gone():
                    raise ClientGoneError
            try:
                index, event = self._queue.get(timeout=LOOK_SECONDS)
            except Empty:
                continue
            self._num_pending -= isinstance(event, FinishEvent)
            yield index, event

    def _put(self, index: int, event: Event) -> None:
        self._queue.put((index, event))


class Answer:
    """A job whose events are told as they come."""

    def __init__(self, job: Job, events: Generator[Any, None, None]) -> None:
        self.job = job
        self.events: Iterator[Any] = events
        self._source = events

    def begin(self) -> None:
        """Wait for the first event. Raises what is refused before that."""
        first = list(islice(self._source, 1))
        self.events = chain(first, self._source)

    def close(self) -> None:
        """End it, also if nobody has begun to read."""
        self._source.close()
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
