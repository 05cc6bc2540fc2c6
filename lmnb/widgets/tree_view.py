"""Shows an engine's prefix cache: a live tree with a timeline in a widget, a picture elsewhere.

Joins a cache's events, a feed and a widget. Knows the engine only by the `CacheSource` protocol.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lmnb.errors import ArgumentError, EngineClosedError, LmnbError
from lmnb.language.graphviz_source import graphviz_source
from lmnb.runtime.events import CacheEvent
from lmnb.widgets import tree_dot, tree_svg
from lmnb.widgets.detect import ViewMode, check_mode, detect_mode, has_anywidget
from lmnb.widgets.feed import WIDGET_INTERVAL, Feed
from lmnb.widgets.output import Output, Printed, bundle
from lmnb.widgets.page import page
from lmnb.widgets.run_sinks import PROTOCOL, Wire
from lmnb.widgets.superseded import superseded
from lmnb.widgets.tree_model import CacheModel, Marks, counted
from lmnb.widgets.tree_source import CacheSource, Translator, pool_state

GAUGE_INTERVAL = 0.5  # seconds between looks at the pool while something runs


class CacheView:
    """One view of a cache. `mode`: widget, html, text or off; None detects what the front end can show.

    `since` is a number of an event: pictures mark what happened after it. By default, what happened last.
    """

    def __init__(self, source: CacheSource, mode: ViewMode | str | None = None, *, since: int | None = None) -> None:
        self.mode: ViewMode = detect_mode() if mode is None else check_mode(mode)
        self._source = source
        self._since = since
        self._lock = threading.Lock()  # model, translator and delivery number change together
        self._translator = Translator(source.decode)
        self._model = CacheModel()
        self._delivery = 0
        self._resync_wanted = False
        self._pool_wanted = False
        self._pool: dict[str, Any] = {}
        self._widget: Any = None
        self._displays: list[_Display] = []
        self._feed: Feed[CacheEvent] = Feed(self._deliver, WIDGET_INTERVAL, name="lmnb-cache-view")
        self._unsubscribe: Callable[[], None] | None = None
        self._load()
        self._refresh_pool()

    def display(self) -> None:
        """Show the view in the running cell. Call it in the main thread.

        A widget stays live until `close`, or until no front end shows it any more; HTML and text are the
        picture of now.
        """
        if self.mode == "off":
            return
        if self.mode == "text":
            Printed().write(self.to_text() + "\n")
            return
        display = _Display(self)
        if self.mode == "widget":
            self._open()
            self._displays.append(display)
            superseded.add(display.end)
        display.output.show(self._widget)

    def _display_(self) -> object:
        """What marimo shows where a cell's last value is a view: the live widget, or text without anywidget."""
        if not has_anywidget():
            return self.to_text()
        self._open()
        return self._widget

    def _ipython_display_(self) -> None:
        """The same for IPython."""
        self.display()

    def _open(self) -> None:
        if self._widget is None:
            from lmnb.widgets.host import CacheWidget

            self._widget = CacheWidget(self.snapshot, self._on_message)
            self._resume()

    def _end(self, display: _Display) -> None:
        """One of the view's displays is gone. After the last one nobody sees it; displayed again, it opens anew."""
        self._displays.remove(display)
        display.output.settle()
        if self._displays:
            return
        self._pause()
        widget, self._widget = self._widget, None
        if widget is not None:
            widget.close()

    def close(self) -> None:
        """Stop following the cache, for good."""
        self._pause()
        self._feed.close()
        for display in self._displays:
            display.output.settle()

    def say_unloaded(self) -> None:
        """Tell who looks at the view that its model is gone; what was cached last stays to be seen."""
        self._pause()
        self._outdate()
        if self._widget is not None:
            self._resync_wanted = True
            self._feed.poke()

    @property
    def seq(self) -> int:
        """Number of the last event in the view: a later view's `since`."""
        return self._model.seq

    def to_svg(self) -> str:
        """The tree as one self-contained `svg` element."""
        with self._lock:
            return tree_svg.svg(self._model.head, self._marks())

    def to_dot(self) -> str:
        """The tree in DOT, graphviz's language."""
        with self._lock:
            return tree_dot.to_dot(self._model.head, self._marks())

    def to_graphviz(self) -> Any:
        """A `graphviz.Source`, which notebooks show. MissingPackageError without the `graphviz` library.

        Its program `dot` is needed to draw; `to_svg` needs neither.
        """
        return graphviz_source(self.to_dot(), "cache")

    def to_text(self) -> str:
        """The tree as indented lines."""
        with self._lock:
            return tree_svg.text(self._model.head, self._marks())

    def to_html(self) -> str:
        """A whole page with the tree and its timeline; needs neither kernel nor network."""
        return page("tree", "Cache tree", self.snapshot(), self._picture())

    def snapshot(self) -> str:
        """JSON text of the tree and its recorded events."""
        with self._lock:
            value = {
                "protocol": PROTOCOL,
                "kind": "cache",
                "seq": self._delivery,
                "model": self._model.to_json(),
                "pool": self._refresh_pool(),
            }
            return json.dumps(value, ensure_ascii=False)

    def __repr__(self) -> str:
        return f"CacheView(mode={self.mode!r})"

    def _picture(self) -> str:
        pool = self._refresh_pool()
        caption = f"{pool['cached_tokens']:,} of {pool['pool_tokens']:,} tokens cached"
        if pool.get("closed"):
            caption = f"the model was unloaded; this was its cache · {caption}"
        with self._lock:
            # A picture behind a live view is for the notebook's file, and so for sites that take drawings away.
            return tree_svg.html(self._model.head, self._marks(), caption, titles=self.mode != "widget")

    def _outdate(self) -> None:
        for display in list(self._displays):
            display.output.outdate()

    def _marks(self) -> Marks:
        since = None if self._since is None else self._since - self._model.base_seq
        return self._model.marks(since=since)

    def _refresh_pool(self) -> dict[str, Any]:
        """The gauge's numbers; the last known ones, marked, once the engine is gone: the picture outlives it."""
        try:
            self._pool = pool_state(self._source.status(), self._source.holders())
        except EngineClosedError:
            self._pool = {**self._pool, "closed": 1}
        return self._pool

    def _load(self) -> None:
        """Start from all recorded events, or from a snapshot where the first ones are no longer kept."""
        recorded = self._source.cache_events(-1)
        with self._lock:
            self._translator = Translator(self._source.decode)
            self._model = CacheModel()
            if recorded and recorded[0].seq > 0:
                self._rebase()
            else:
                self._extend(recorded)

    def _rebase(self) -> None:
        nodes = self._translator.rebase(snapshot := self._source.snapshot())
        self._model = CacheModel(nodes, snapshot.seq)

    def _extend(self, events: Sequence[CacheEvent]) -> list[Wire]:
        """Apply the events that are new, in wire form. LookupError if one before them is missing."""
        wires = []
        for event in events:
            if event.seq <= self._translator.seq:
                continue
            if event.seq != self._translator.seq + 1:
                raise LookupError(f"cache event {event.seq} came after {self._translator.seq}")
            wires.append(wire := self._translator.translate(event))
            self._model.append(wire)
        return wires

    def _deliver(self, events: list[CacheEvent]) -> None:
        wanted, self._pool_wanted = self._pool_wanted, False
        with self._lock:
            try:
                wires = self._extend(events)
            except LookupError:  # the tree is right, its history has a hole: go on from a snapshot
                with suppress(EngineClosedError):  # then the last known picture stays
                    self._rebase()
                wires, self._resync_wanted = [], True
            if wires or wanted:
                self._delivery += 1
            number = self._delivery
        if wires or wanted:
            pool = self._refresh_pool()
            self._outdate()
            self._post({"type": "events", "seq": number, "events": wires, "pool": pool})
            if pool["running"] or pool["waiting"]:
                self._look_again()
        if self._resync_wanted:
            self._resync_wanted = False
            self._post({"type": "snapshot", "snapshot": self.snapshot()})

    def _post(self, message: Wire) -> None:
        if (widget := self._widget) is not None:
            widget.post(message)

    def _look_again(self) -> None:
        """Ask for the gauge soon: a request that ends without a new token changes it, and leaves no event."""
        if not self._pool_wanted and self._unsubscribe is not None:
            self._pool_wanted = True
            timer = threading.Timer(GAUGE_INTERVAL, self._feed.poke)
            timer.daemon = True
            timer.start()

    def _resume(self) -> None:
        if self._unsubscribe is None:
            with suppress(EngineClosedError):
                self._unsubscribe = self._source.subscribe(self._feed.put)
                self._feed.put(self._source.cache_events(self._translator.seq))

    def _pause(self) -> None:
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            with suppress(EngineClosedError):
                unsubscribe()

    def _act(self, act: str, node: object) -> str:
        """Do what somebody asked for in the view; says what became of it."""
        keeper = self._source.cache
        try:
            if act == "flush":
                done = self._source.flush_cache()
                return "What was not pinned is forgotten." if done else "Not flushed: requests are running."
            if not isinstance(node, int):
                raise ArgumentError(f"a view can pin, unpin, evict and flush, not {act} {node!r}")
            if act == "pin":
                keeper.pin(node)
                return "Pinned: it stays, with all above it."
            if act == "unpin":
                keeper.unpin(node)
                return "Unpinned."
            if act == "evict":
                return f"Evicted {counted(keeper.evict(node), 'token')}."
            raise ArgumentError(f"a view can pin, unpin, evict and flush, not {act}")
        except LmnbError as error:
            return f"Not done: {error}."

    def _on_message(self, message: Wire) -> None:
        if message["type"] == "act":
            self._post({"type": "notice", "text": self._act(str(message.get("act")), message.get("node"))})
            return
        if message["type"] == "views" and message.get("count") == 0:
            self._pause()  # nobody looks
        elif message["type"] in ("views", "resync"):
            self._resume()
            if message["type"] == "resync" or message.get("seq", self._delivery) != self._delivery:
                self._resync_wanted = True
                self._feed.poke()


class _Display:
    """One place in the notebook that shows a view. A live one is kept by its view, so that it can be frozen."""

    def __init__(self, view: CacheView) -> None:
        self._view = view
        self.output = Output(lambda: bundle(view._picture(), view.to_text()))

    def end(self) -> None:
        """Its cell has run again."""
        self._view._end(self)
