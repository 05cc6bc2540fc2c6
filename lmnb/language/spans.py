"""Runs as spans, for tracing systems: one for each program, branch and generation, made of the runs' events.

Knows no tracing system: a `Recorder` does. It is called on one thread of its own, in order, so that a slow system
holds up no run; times are those of the events.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmnb.language.events import (
    BranchesJoined,
    BranchFinished,
    BranchOpened,
    ChoiceMade,
    GenFinished,
    GenStarted,
    ImageAdded,
    RoleClosed,
    RoleOpened,
    RunEvent,
    RunFinished,
    RunResumed,
    RunStarted,
    TextAppended,
    TokensGenerated,
)
from lmnb.language.redaction import Redactor
from lmnb.language.run import Run
from lmnb.language.run_observers import on_run

logger = logging.getLogger("lmnb")

LONGEST = 20_000  # characters of a prompt or a text in a span
Attributes = dict[str, Any]


@dataclass
class Span:
    """One span. `handle` is the recorder's own; `kind`: program, branch or gen."""

    name: str
    kind: str
    parent: Span | None
    start_ns: int
    attributes: Attributes
    inputs: str | None = None
    outputs: str | None = None
    outer: Any = None  # what the recorder found around a run: the parent of a span without one
    handle: Any = None
    error: str | None = None
    failed: bool = False
    events: list[tuple[str, int, Attributes]] = field(default_factory=list)


class Recorder(Protocol):
    """A tracing system. An error that it raises is logged, and stops neither the run nor the next span."""

    def outer(self) -> Any:
        """What is open around a run, asked in the thread that starts it."""
        ...

    def start(self, span: Span) -> Any:
        """Open the span; returns its handle. Its parent's handle is in `span.parent`."""
        ...

    def end(self, span: Span, end_ns: int) -> None:
        """Close the span."""
        ...


class SpanFollower:
    """Turns every run that begins between `open` and `close` into spans. `texts`: with prompts and replies."""

    def __init__(self, recorder: Recorder, *, texts: bool) -> None:
        self._recorder = recorder
        self._texts = texts
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end: Callable[[], None] | None = None

    def open(self) -> None:
        """Follow the runs that begin from now on."""
        if self._end is None:
            self._end = on_run(self._follow)

    def close(self) -> None:
        """Follow no new runs; those that go on are followed to their end."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all that was told so far is recorded. False if that took longer than `timeout` seconds."""
        done = threading.Event()
        self._put(done.set)
        return done.wait(timeout)

    def _follow(self, run: Run) -> None:
        try:
            outer = self._recorder.outer()
        except Exception:
            logger.exception("what is open around a run could not be found")
            outer = None
        spans = RunSpans(self._recorder, outer, Redactor(), texts=self._texts)

        def take(event: RunEvent) -> None:
            now = time.time_ns()
            self._put(lambda: spans.take(event, now))

        run.subscribe(take)

    def _put(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="lmnb-spans", daemon=True)
                self._thread.start()

    def _loop(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:
                logger.exception("a span could not be recorded")


class RunSpans:
    """The spans of one run."""

    def __init__(self, recorder: Recorder, outer: Any, redactor: Redactor, *, texts: bool) -> None:
        self._recorder = recorder
        self._outer = outer
        self._redactor = redactor
        self._texts = texts
        self._run: dict[str, Any] = {}
        self._branches: dict[int, Span] = {}
        self._gens: dict[int, Span] = {}
        self._ends: dict[int, tuple[str, str | None]] = {}  # how branches ended whose own branches go on
        self._said: dict[int, list[str]] = {}  # by branch: the pieces of its whole text, if texts are wanted
        self._begun: dict[int, list[int]] = {}  # by branch: of each `gen`, how many of those came before it
        self._replies: dict[int, list[str]] = {}  # by branch: those of its open generation

    def take(self, event: RunEvent, now: int) -> None:
        """Start, change or end the span that the event is about. `now` is in nanoseconds, as `time.time_ns()`."""
        if isinstance(event, RunStarted):
            self._run = {"lmnb.run": event.run, "gen_ai.request.model": event.model}
            if event.cell is not None:
                self._run["lmnb.cell"] = event.cell
            self._open_branch(0, event.program, "program", None, now, {})
        elif isinstance(event, BranchOpened):
            called = event.program is not None
            about: Attributes = {"lmnb.branch": event.label}
            if event.row is not None:
                about["lmnb.row"] = event.row
            parent = self._branches.get(event.parent)  # None where the run was over, and goes on
            name = event.program or f"branch {event.label}"
            self._open_branch(event.branch, name, "program" if called else "branch", parent, now, about)
            self._said[event.branch] = [] if called else self._said_before(event)
        elif isinstance(event, BranchesJoined):
            self._branches[event.parent].events.append(("join", now, {"lmnb.mode": event.mode}))
        elif isinstance(event, BranchFinished):
            self._ends[event.branch] = (event.status, event.error)
            if event.branch and not any(
                span.parent is self._branches[event.branch] for span in self._branches.values()
            ):
                self._end_branch(event.branch, event.status, event.error, now)
        elif isinstance(event, RunFinished):
            self._ends[0] = (event.status, event.error)
            for branch in sorted(self._branches, reverse=True):  # children have greater numbers than their parents
                self._end_branch(branch, *self._ends.get(branch, (event.status, None)), now)
        elif isinstance(event, GenStarted):
            self._open_gen(event, now)
        elif isinstance(event, GenFinished):
            self._end_gen(event, now)
        elif not isinstance(event, RunResumed):
            self._hear(event)

    def _open_branch(self, branch: int, name: str, kind: str, parent: Span | None, now: int, about: Attributes) -> None:
        attributes = {**self._run, **about}
        self._branches[branch] = self._start(Span(name, kind, parent, now, attributes, outer=self._outer))

    def _end_branch(self, branch: int, status: str, error: str | None, now: int) -> None:
        span = self._branches.pop(branch, None)
        if span is None:
            return
        if (gen := self._gens.pop(branch, None)) is not None:
            gen.failed = status == "failed"
            gen.outputs = self._text(self._replies.pop(branch, []))
            self._recorder.end(gen, now)
        span.failed = status == "failed"
        span.error = None if error is None else self._redactor.text(error)
        span.attributes["lmnb.status"] = status
        span.outputs = self._text(self._said.get(branch, []))  # kept: a run that is over may go on
        self._recorder.end(span, now)

    def _said_before(self, event: BranchOpened) -> list[str]:
        """What a branch has of its parent's text: up to where it was forked, or to the generation that it says anew."""
        said, begun = self._said.get(event.parent, []), self._begun.get(event.parent, [])
        return said[: begun[event.at[0]]] if event.at is not None else list(said)

    def _open_gen(self, event: GenStarted, now: int) -> None:
        parent = self._branches[event.branch]
        attributes: Attributes = {**self._run, "gen_ai.operation.name": "text_completion"}
        told = {"lmnb.variable": event.var, "lmnb.constraint": event.constraint, "lmnb.line": event.line}
        attributes |= {name: value for name, value in told.items() if value is not None}
        name = f"{event.kind} {event.var}" if event.var else event.kind
        span = Span(name, "gen", parent, now, attributes, inputs=self._text(self._said.get(event.branch, [])))
        self._gens[event.branch] = self._start(span)
        self._replies[event.branch] = []
        if event.kind == "gen":
            self._begun.setdefault(event.branch, []).append(len(self._said.get(event.branch, [])))

    def _end_gen(self, event: GenFinished, now: int) -> None:
        span = self._gens.pop(event.branch, None)
        if span is None:
            return
        span.failed = event.finish_reason == "error"
        span.attributes |= {
            "gen_ai.usage.input_tokens": event.reused + event.computed,
            "gen_ai.usage.output_tokens": event.generated,
            "gen_ai.response.finish_reasons": [event.finish_reason],
            "lmnb.tokens.reused": event.reused,
            "lmnb.tokens.computed": event.computed,
        }
        if event.first_token_seconds is not None:
            span.attributes["lmnb.first_token_seconds"] = event.first_token_seconds
        span.outputs = self._text(self._replies.pop(event.branch, []))
        self._recorder.end(span, now)

    def _hear(self, event: RunEvent) -> None:
        """Keep the texts, if they are wanted."""
        if isinstance(event, ChoiceMade) and event.branch in self._gens:
            self._gens[event.branch].attributes["lmnb.choices"] = len(event.choices)
        if not self._texts:
            return
        text = ""
        if isinstance(event, RoleOpened):
            text = event.prefix
        elif isinstance(event, RoleClosed):
            text = event.suffix
        elif isinstance(event, (TextAppended, ImageAdded, TokensGenerated, ChoiceMade)):
            text = event.text
        branch = getattr(event, "branch", 0)
        self._said.setdefault(branch, []).append(text)
        if isinstance(event, (TokensGenerated, ChoiceMade)) and branch in self._replies:
            self._replies[branch].append(text)

    def _start(self, span: Span) -> Span:
        try:
            span.handle = self._recorder.start(span)
        except Exception:  # the run's other spans are still worth having
            logger.exception("a span could not be started")
        return span

    def _text(self, pieces: list[str]) -> str | None:
        """A text as it may leave: without secrets, and cut in the middle."""
        if not self._texts:
            return None
        text = self._redactor.text("".join(pieces))
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]} … {len(text) - LONGEST:,} more characters … {text[-LONGEST // 2 :]}"
        return text
