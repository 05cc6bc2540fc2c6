"""Shows one run in a cell, live: `RunView(run).display()`, and `finish()` when the cell is about to end.

Joins a run's events, a feed and a sink. Knows nothing of engines, and never makes the run wait for a screen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from lmnb.language.events import RunEvent, RunFinished, to_json
from lmnb.widgets import run_html, run_text
from lmnb.widgets.detect import ViewMode, check_mode, current_cell, detect_mode
from lmnb.widgets.feed import Feed
from lmnb.widgets.page import page
from lmnb.widgets.rerun import Comparison
from lmnb.widgets.run_sinks import HtmlSink, RunRecord, SilentSink, Sink, TextSink, WidgetSink, Wire


class RunSource(Protocol):
    """What a view needs of a run."""

    def subscribe(self, callback: Callable[[RunEvent], None], /) -> Callable[[], None]:
        """Call back with every event from the first on, in order; returns what ends that."""
        ...

    def cancel(self) -> None:
        """Stop the run soon; any thread."""
        ...


class RunView:
    """One run's view. `mode`: widget, html, text or off; None detects what the front end can show."""

    def __init__(self, run: RunSource, mode: ViewMode | str | None = None) -> None:
        self.mode: ViewMode = detect_mode() if mode is None else check_mode(mode)
        self._run: RunSource | None = run
        self._record = RunRecord(Comparison(current_cell()))
        self._sink = self._make_sink(run)
        self._feed: Feed[Wire] = Feed(self._deliver, self._sink.interval)
        self._ended = threading.Event()  # the run's last event was delivered
        self._unsubscribe: Callable[[], None] | None = None
        self._finished = False
        self._background = False

    def display(self, *, background: bool = False) -> None:
        """Show the view in the running cell, once. Call it in the main thread.

        With `background` the cell will not wait for the run: the view then finishes by itself.
        """
        if self._unsubscribe is not None or self._run is None:
            return
        self._background = background
        self._sink.show()
        self._unsubscribe = self._run.subscribe(self._take)

    def finish(self, timeout: float = 5.0) -> bool:
        """Wait for the last event, show it, and make the output stand alone. Call it in the main thread.

        False if the run's end was not seen within `timeout` seconds; what was seen until then is shown.
        """
        if self._unsubscribe is None or self._finished:
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

    def _make_sink(self, run: RunSource) -> Sink:
        if self.mode == "widget":
            return WidgetSink(self._record, run.cancel, lambda: self._feed.poke())
        if self.mode == "html":
            return HtmlSink(self._record)
        return TextSink(self._record) if self.mode == "text" else SilentSink(self._record)

    def _take(self, event: RunEvent) -> None:
        self._feed.put([to_json(event)], hurry=isinstance(event, RunFinished))  # a cell's end waits for this one

    def _deliver(self, events: list[Wire]) -> None:
        try:
            self._sink.deliver(events)
        finally:
            if self._record.ended and not self._ended.is_set():
                self._ended.set()
                if self._background:
                    self._close(0.0)

    def _close(self, timeout: float) -> None:
        self._finished = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._feed.close(timeout)
        self._sink.finish()
        self._run = None
