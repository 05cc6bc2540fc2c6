"""One display in a cell, made once and then replaced in place. Knows IPython's display calls and nothing of runs.

A live view is a second display, right behind a picture of the same, which it hides while it lives (`mount.ts`). In a
notebook that is opened again nothing hides the picture; its style sheet hides what front ends write in the place of a
widget that is gone.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from lmnb.widgets.pin import CellPin

MimeBundle = dict[str, Any]
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
PICTURE_INTERVAL = 5.0  # seconds after which a change of what a live view shows is in its picture, and so in the file
MOST_OF_A_CORE = 0.05  # that drawing pictures may take
MOST_CHARACTERS = 5000  # of pictures, a second: large ones are drawn anew less often
_live: WeakValueDictionary[str, Output] = WeakValueDictionary()  # those that show a widget, by display id
logger = logging.getLogger("lmnb.widgets")


class LiveView(Protocol):
    """What an output needs of a widget."""

    model_id: str
    picture: str  # the class name of the pictures that it hides


class Output:
    """Create and `show` it in the main thread; `update` and `outdate` may be called from any thread.

    `picture` draws what there is to see now: what is saved, and what stands where a live view is gone.
    """

    def __init__(self, picture: Callable[[], MimeBundle]) -> None:
        self.display_id = uuid.uuid4().hex
        self._live_id = uuid.uuid4().hex
        self._pin = CellPin()
        self._picture = picture
        self._widget: LiveView | None = None
        self._is_live = False
        self._shown = False
        self._lock = threading.Lock()
        self._drawing = threading.Lock()  # held from drawing to sending: an older picture never comes after a newer one
        self._timer: threading.Timer | None = None  # until the next picture
        self._not_before = 0.0  # the time, time.monotonic()

    def show(self, widget: LiveView | None = None) -> None:
        """Make the display; with the live view that stands for it as long as it can."""
        from IPython.display import display

        self._widget = widget
        display(self._draw(), raw=True, display_id=self.display_id)
        self._shown = True
        if widget is None:
            return
        _live[self.display_id] = self
        self._is_live = True
        view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
        # No text: a console prints the picture's. Empty HTML, for those that look for something they can show.
        display({WIDGET_MIME: view, "text/html": ""}, raw=True, display_id=self._live_id)

    def update(self) -> None:
        """Draw the picture anew, if there is one."""
        self.settle()
        if self._shown:
            with self._drawing:
                self._update(self.display_id, self._draw())

    def outdate(self) -> None:
        """The picture has become old, and is drawn anew in some seconds, however often this is called. Any thread."""
        with self._lock:
            if self._timer is None and self._shown:
                wait = max(PICTURE_INTERVAL, self._not_before - time.monotonic())
                self._timer = threading.Timer(wait, self._redraw)
                self._timer.daemon = True
                self._timer.start()

    def settle(self) -> None:
        """Leave the picture as it is."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def freeze(self) -> None:
        """End the live view: the picture stays, as it is now. What comes later changes the picture. Main thread."""
        _live.pop(self.display_id, None)
        self._is_live = False
        self.update()
        self._update(self._live_id, {"text/html": ""})

    def _draw(self, *, late: bool = False) -> MimeBundle:
        """`late`: only a notebook that was saved meanwhile shows this one, so that what ran in it does so no longer."""
        bundle = self._picture()
        if self._widget is None:
            return bundle
        classes = f"lmnb-still {self._widget.picture}{' lmnb-late' if late and self._is_live else ''}"
        return {**bundle, "text/html": f'<div class="{classes}">{bundle["text/html"]}</div>'}

    def _redraw(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            self._timer = None
        began, size = time.monotonic(), 0
        try:
            with self._drawing:
                bundle = self._draw(late=True)
                size = sum(map(len, bundle.values()))
                self._update(self.display_id, bundle)
        except Exception:
            logger.exception("a picture could not be drawn")
        now = time.monotonic()
        self._not_before = now + max((now - began) / MOST_OF_A_CORE, size / MOST_CHARACTERS)

    def _update(self, display_id: str, bundle: MimeBundle) -> None:
        from IPython.display import update_display

        self._pin.run(lambda: update_display(bundle, raw=True, display_id=display_id))


class Printed:
    """What a cell prints. Create it in the main thread; `write` may be called from any thread."""

    def __init__(self) -> None:
        self._pin = CellPin()

    def write(self, text: str) -> None:
        """Print `text` in the cell, in one write, so that threads do not interleave."""
        import sys

        def emit() -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        self._pin.run(emit)


def freeze_outputs() -> int:
    """Replace every live view of this process by a picture that needs neither kernel nor scripts. How many there were.

    A front end changes only outputs that it has shown since the page was loaded.
    """
    outputs = list(_live.values())
    for output in outputs:
        output.freeze()
    return len(outputs)


def bundle(html: str, text: str) -> MimeBundle:
    """A mime bundle that stands alone."""
    return {"text/html": html, "text/plain": text}
