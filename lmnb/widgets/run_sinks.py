"""Where a run's events go in each mode: a widget, one HTML display, or printed text.

A sink's `show` and `finish` are called in the main thread, `deliver` on the feed's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Protocol

from lmnb.widgets import run_html, run_text
from lmnb.widgets.feed import HTML_INTERVAL, WIDGET_INTERVAL
from lmnb.widgets.output import MimeBundle, Output, Printed, bundle
from lmnb.widgets.rerun import Comparison
from lmnb.widgets.run_model import RunModel, merge_tokens
from lmnb.widgets.run_parting import Partings
from lmnb.widgets.shorten import fitted
from lmnb.widgets.slim import slim_events, slim_model
from lmnb.widgets.superseded import superseded

PROTOCOL = 1  # of the messages and snapshots, for saved notebooks

Wire = dict[str, Any]


class Sink(Protocol):
    """One way of showing a run."""

    interval: float  # seconds between deliveries

    def show(self) -> None:
        """Make the display."""
        ...

    def deliver(self, events: list[Wire]) -> None:
        """Take the next events, in order."""
        ...

    def finish(self) -> None:
        """The last update: after it, what is saved stands alone."""
        ...


class RunRecord:
    """A run's model and the number of the last delivery in it. One lock makes the two agree for every reader."""

    def __init__(self, comparison: Comparison | None = None) -> None:
        self._lock = threading.Lock()
        self._model = RunModel()
        self._seq = 0
        self._comparison = comparison
        self._wanted: set[tuple[int, int]] = set()

    @property
    def seq(self) -> int:
        """Number of the last delivery."""
        return self._seq

    @property
    def ended(self) -> bool:
        """Whether the run's last event is in."""
        return self._model.ended

    def apply(self, events: list[Wire]) -> tuple[int, list[Wire]]:
        """Fold events in. Returns the number of this delivery, and its events with what they show of an earlier run."""
        with self._lock:
            self._model.apply_all(events)
            if self._comparison is not None:
                changes = self._comparison.look(self._model, events)
                self._model.apply_all(changes)
                events = [*events, *changes]
            self._seq += 1
            return self._seq, events

    def snapshot(self, *, whole: bool = False) -> str:
        """JSON text of the model; very long texts are cut, unless all is wanted or a reader asked for one."""
        with self._lock:
            model = self._model.to_json()
            if not whole:
                model = slim_model(model, self._wanted)
            value = {"protocol": PROTOCOL, "kind": "run", "seq": self._seq, "model": model}
            return json.dumps(value, ensure_ascii=False)

    def want(self, branch: int, item: int) -> None:
        """Leave this text whole in snapshots from now on."""
        with self._lock:
            self._wanted.add((branch, item))

    def read(self, function: Callable[[RunModel], str]) -> str:
        """`function` of the model, which must not keep it."""
        with self._lock:
            return function(self._model)

    def bundle(self) -> MimeBundle:
        """The run as it is now, for a display, of a size that a notebook's file can hold."""
        html = self.read(lambda model: fitted(model, run_html.render))
        return bundle(html, self.read(lambda model: fitted(model, run_text.saved)))


class WidgetSink:
    """Numbered deltas to the front end; a snapshot for whoever missed one."""

    interval = WIDGET_INTERVAL

    def __init__(
        self,
        record: RunRecord,
        cancel: Callable[[], None],
        resync: Callable[[], bool],
        partings: Callable[[Callable[[Wire], None]], Partings],
        *,
        saved: bool = False,
    ) -> None:
        from lmnb.widgets.host import RunWidget

        self._record = record
        self._cancel = cancel
        self._resync = resync
        self._partings = partings(lambda message: self.widget.post(message))
        self._resync_wanted = False
        self.widget = RunWidget(record.snapshot, self._on_message, saved=saved)
        self._output = Output(record.bundle)

    def show(self) -> None:
        superseded.add(self.widget.close)
        self._output.show(self.widget)

    def deliver(self, events: list[Wire]) -> None:
        if events:
            number, events = self._record.apply(merge_tokens(events))
            self._output.outdate()
            self.widget.post({"type": "events", "seq": number, "events": slim_events(events)})
        if self._resync_wanted:
            self._resync_wanted = False
            self.send_snapshot()

    def send_snapshot(self) -> None:
        """Send the whole model, for a front end that missed a message."""
        self.widget.post({"type": "snapshot", "snapshot": self._record.snapshot()})

    def finish(self) -> None:
        self.widget.save()
        self._output.update()

    def _on_message(self, message: Wire) -> None:
        # On a subshell's thread, while the cell is busy: flip a switch and go.
        if message["type"] == "cancel":
            self._cancel()
        elif message["type"] == "ask":
            self._partings.ask(message)
        elif message["type"] == "part":
            self._partings.part(message)
        elif message["type"] in ("resync", "whole") or message.get("seq", self._record.seq) != self._record.seq:
            if message["type"] == "whole":
                self._record.want(message["branch"], message["item"])
            self._resync_wanted = True
            if not self._resync():  # the feed has ended: nothing else writes to the widget now
                self._resync_wanted = False
                self.send_snapshot()


class HtmlSink:
    """One HTML display, replaced a few times a second."""

    interval = HTML_INTERVAL

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._output = Output(record.bundle)

    def show(self) -> None:
        self._output.show()

    def deliver(self, events: list[Wire]) -> None:
        self._record.apply(merge_tokens(events))
        self._output.update()

    def finish(self) -> None:
        self._output.update()


class TextSink:
    """Prints the transcript as it becomes certain, and a summary at the end. Never prints a thing twice."""

    interval = 0.1

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._output = Printed()
        self._printed = 0

    def show(self) -> None:
        """Nothing is known yet; the title comes with the first event."""

    def deliver(self, events: list[Wire]) -> None:
        first = any(event["type"] == "run" for event in events)
        self._record.apply(events)
        if first:
            self._output.write(self._record.read(run_text.title) + "\n")
        self._print(self._record.read(lambda model: run_text.transcript(model, stable=not model.ended)))

    def finish(self) -> None:
        self._print(self._record.read(run_text.transcript))
        summary = self._record.read(run_text.summary)
        self._output.write("\n" + summary + "\n")

    def _print(self, text: str) -> None:
        if len(text) > self._printed:
            self._output.write(text[self._printed :])
            self._printed = len(text)


class SilentSink:
    """Shows nothing, and keeps the model: a run shown later, or asked for its HTML, is complete."""

    interval = 0.5

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    def show(self) -> None: ...

    def deliver(self, events: list[Wire]) -> None:
        self._record.apply(events)

    def finish(self) -> None: ...
