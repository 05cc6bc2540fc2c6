"""One display in a cell, made once and then replaced in place. Knows IPython's display calls and nothing of runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from lmnb.widgets.pin import CellPin

MimeBundle = dict[str, Any]
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
_live: WeakValueDictionary[str, Output] = WeakValueDictionary()  # those that show a widget, by display id


class Output:
    """Create and `show` it in the main thread; `update` may be called from any thread.

    `picture` makes what stands in the place of a live view once the output is frozen.
    """

    def __init__(self, picture: Callable[[], MimeBundle] | None = None) -> None:
        self.display_id = uuid.uuid4().hex
        self._pin = CellPin()
        self._picture = picture
        self._frozen = False
        self._shown = False

    def show(self, bundle: MimeBundle) -> None:
        """Make the display."""
        from IPython.display import display

        if WIDGET_MIME in bundle and self._picture is not None:
            _live[self.display_id] = self
        display(bundle, raw=True, display_id=self.display_id)
        self._shown = True

    def update(self, bundle: MimeBundle) -> None:
        """Replace what the display shows, if it was made. Once frozen, it shows no live view any more."""
        if not self._shown:
            return
        if self._frozen:
            bundle = {mime: data for mime, data in bundle.items() if mime != WIDGET_MIME}
        self._update(bundle)

    def freeze(self) -> None:
        """Replace the live view by a picture of now. What comes later changes the picture. Main thread."""
        assert self._picture is not None
        self._frozen = True
        _live.pop(self.display_id, None)
        self._update(self._picture())

    def _update(self, bundle: MimeBundle) -> None:
        from IPython.display import update_display

        self._pin.run(lambda: update_display(bundle, raw=True, display_id=self.display_id))

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


def bundle(html: str, text: str, widget: Any | None = None) -> MimeBundle:
    """A mime bundle that stands alone; with the live view first where there is one."""
    data: MimeBundle = {"text/html": html, "text/plain": text}
    if widget is not None:
        data[WIDGET_MIME] = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return data
