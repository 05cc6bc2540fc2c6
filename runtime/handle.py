"""What `Engine.submit` returns: the caller's end of one request."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import Empty, SimpleQueue

from lmnb.errors import EngineClosedError, GenerationError
from lmnb.runtime.request import Completion, Event, FinishEvent

_WAIT_SECONDS = 0.1  # short waits let a KeyboardInterrupt through on every platform


def forked_error() -> EngineClosedError:
    """What to tell a process that has an engine's objects, but not its thread."""
    return EngineClosedError(
        "this process was forked from the one that runs the engine, and a fork has no threads: load the model here "
        "again, or share the engine between threads of one process"
    )


class RequestHandle:
    """Iterate over it for events as they come (unless they go to a callback), or wait for `result()`."""

    def __init__(
        self, request_id: int, cancel: Callable[[int], None], on_event: Callable[[Event], None] | None
    ) -> None:
        self.request_id = request_id
        self._cancel = cancel
        self._on_event = on_event
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._finished = threading.Event()
        self._last: FinishEvent | None = None
        self._broken: BaseException | None = None  # what the callback has raised
        self._process = os.getpid()

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    def cancel(self) -> None:
        """Ask the engine to stop. What was generated is kept; the request finishes with reason "cancelled"."""
        self._cancel(self.request_id)

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end. Raises the request's error, or TimeoutError after `timeout` seconds."""
        waited = 0.0
        while not self._finished.wait(_WAIT_SECONDS if timeout is None else min(_WAIT_SECONDS, timeout - waited)):
            self._check_process()
            waited += _WAIT_SECONDS
            if timeout is not None and waited >= timeout:
                raise TimeoutError(f"request {self.request_id} is not done after {timeout} s")
        assert self._last is not None
        if self._last.error is not None:
            raise self._last.error
        return self._last.completion

    def __iter__(self) -> Iterator[Event]:
        """Events up to and including the `FinishEvent`; one iteration per handle."""
        assert self._on_event is None, "this request's events go to its callback"
        while True:
            try:
                event = self._events.get(timeout=_WAIT_SECONDS)
            except Empty:
                self._check_process()
                continue
            yield event
            if isinstance(event, FinishEvent):
                return

    def _check_process(self) -> None:
        """Nobody finishes a request whose engine stayed behind in another process."""
        if os.getpid() != self._process:
            raise forked_error()

    def publish(self, event: Event) -> None:
        """Called by the engine thread. A callback that raises is told of nothing more but the end, and its request is
        cancelled; what it raised is then `result`'s error."""
        if self._on_event is None:
            self._events.put(event)
        elif self._broken is None or isinstance(event, FinishEvent):
            try:
                self._on_event(event)
            except BaseException as error:  # of any kind: `sys.exit()` there must not end the engine's thread
                self._broken = self._broken or error
                self._cancel(self.request_id)
        if isinstance(event, FinishEvent):
            self._last = event if self._broken is None else self._as_broken(event)
            self._finished.set()

    def _as_broken(self, event: FinishEvent) -> FinishEvent:
        """The end of a request whose callback raised."""
        error = GenerationError(
            f"the callback of request {self.request_id} raised {type(self._broken).__name__}: {self._broken}; it must "
            "not raise, so catch there what may go wrong"
        )
        error.__cause__ = self._broken
        return replace(event, error=event.error or error)
