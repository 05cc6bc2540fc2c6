"""Shows one run in a cell, live: `RunView(run).display()`, and `finish()` when the cell is about to end.

Joins a run's events, a feed and a sink. Knows nothing of engines, and never makes the run wait for a screen.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from lmnb.language.events import RunEvent, RunFinished, RunResumed, to_json
from lmnb.language.run import Run
from lmnb.language.saved_run import SavedRun
from lmnb.language.state import ProgramState
from lmnb.widgets import run_html, run_text
from lmnb.widgets.detect import ViewMode, check_mode, current_cell, detect_mode, has_anywidget
from lmnb.widgets.feed import Feed
from lmnb.widgets.page import page
from lmnb.widgets.recent import recent_runs
from lmnb.widgets.rerun import Comparison
from lmnb.widgets.run_parting import Partings
from lmnb.widgets.run_sinks import HtmlSink, RunRecord, SilentSink, Sink, TextSink, WidgetSink, Wire

_FIRST_PICTURE_SECONDS = 1.0


class RunSource(Protocol):
    """What a view needs of a run."""

    def subscribe(self, callback: Callable[[RunEvent], None], /) -> Callable[[], None]:
        """Call back with every event from the first on, in order; returns what ends that."""
        ...

    def cancel(self) -> None:
        """Stop the run soon; any thread."""
        ...


class RunView:
    """One run's view. `mode`: widget, html, text or off; None detects what the front end can show.

    `keep` puts the state of a branch that a reader makes where the user finds it, and returns the name of that place.
    When the run is over the view holds it no more, but the run still holds the view: if it goes on, it is followed.
    """

    def __init__(
        self,
        run: RunSource,
        mode: ViewMode | str | None = None,
        *,
        keep: Callable[[ProgramState], str | None] = lambda state: None,
    ) -> None:
        self.mode: ViewMode = detect_mode() if mode is None else check_mode(mode)
        self._run: RunSource | None = run
        self._weak_run = weakref.ref(run)
        self._keep = keep
        self._lock = threading.Lock()
        self._record = RunRecord(Comparison(current_cell()))
        self._sink = self._make_sink()
        self._feed: Feed[Wire] = Feed(self._deliver, self._sink.interval)
        self._drawn = threading.Event()  # the run's first events were delivered
        self._ended = threading.Event()  # its last event was
        self._unsubscribe: Callable[[], None] | None = None
        self._displayed = False
        self._finished = False
        self._background = False

    def display(self, *, background: bool = False) -> None:
        """Show the view in the running cell, once. Call it in the main thread.

        With `background` the cell will not wait for the run: the view then finishes by itself.
        """
        if self._displayed or self._run is None:
            return
        self._displayed = True
        self._background = background
        self._sink.show()
        self._unsubscribe = self._run.subscribe(self._take)
        if background and self.mode == "html":  # some front ends draw nothing once the cell is over
            self._drawn.wait(_FIRST_PICTURE_SECONDS)

    def _ipython_display_(self) -> None:
        """What IPython does where a cell's last value is a view that was not displayed: the run may still go on."""
        self.display(background=True)

    def _display_(self) -> object:
        """What marimo shows where a cell's last value is a view: the live widget, or what to install for it."""
        if not self._displayed and self._run is not None and has_anywidget():
            self._displayed = self._background = True
            self.mode = "widget"
            self._sink = self._make_sink()
            self._unsubscribe = self._run.subscribe(self._take)
        if isinstance(self._sink, WidgetSink):
            return self._sink.widget
        return "A live view needs anywidget: pip install anywidget"

    def finish(self, timeout: float = 5.0) -> bool:
        """Wait for the last event, show it, and make the output stand alone. Call it in the main thread.

        False if the run's end was not seen within `timeout` seconds; what was seen until then is shown.
        """
        if not self._displayed or self._finished:
            return self._ended.is_set()
        deadline = time.monotonic() + timeout
        self._ended.wait(timeout)
        self._close(max(0.5, deadline - time.monotonic()))
        return self._ended.is_set()

    def to_html(self) -> str:
        """A whole page with the live view as it is now; needs neither kernel nor network."""
        title = self._record.read(run_text.title)
        return page("run", title, self._record.snapshot(whole=True), self._record.read(run_html.render))

    def to_text(self) -> str:
        """The run as plain text."""
        return self._record.read(run_text.render)

    def snapshot(self) -> str:
        """JSON text of the view's state."""
        return self._record.snapshot()

    def __repr__(self) -> str:
        return f"RunView(mode={self.mode!r})"

    def _partings(self, post: Callable[[Wire], None]) -> Partings:
        return Partings(self._weak_run, post, self._keep, lambda events: self._feed.put(events))

    def _cancel(self) -> None:
        if (run := self._run) is not None:
            run.cancel()

    def _make_sink(self) -> Sink:
        if self.mode == "widget":
            saved = isinstance(self._run, SavedRun)
            return WidgetSink(self._record, self._cancel, lambda: self._feed.poke(), self._partings, saved=saved)
        if self.mode == "html":
            return HtmlSink(self._record)
        return TextSink(self._record) if self.mode == "text" else SilentSink(self._record)

    def _take(self, event: RunEvent) -> None:
        with self._lock:
            if self._finished and isinstance(event, RunResumed):
                self._finished, self._background, self._run = False, True, self._weak_run()
                self._ended.clear()
                self._feed = Feed(self._deliver, self._sink.interval)
        self._feed.put([to_json(event)], hurry=isinstance(event, RunFinished))  # a cell's end waits for this one

    def _deliver(self, events: list[Wire]) -> None:
        try:
            self._sink.deliver(events)
        finally:
            self._drawn.set()
            if self._record.ended and not self._ended.is_set():
                self._ended.set()
                if self._background:
                    self._close(0.0)

    def _close(self, timeout: float) -> None:
        with self._lock:
            self._finished = True
            run, self._run = self._run, None
        follow = isinstance(run, Run) and self.mode in ("widget", "html")
        unsubscribe, self._unsubscribe = self._unsubscribe, None  # it holds the run
        if unsubscribe is not None and not follow:
            unsubscribe()
        self._feed.close(timeout)
        self._sink.finish()
        if isinstance(run, Run) and self.mode == "widget":
            recent_runs.add(run)
