"""One display in a cell, made once and then replaced in place. Knows IPython's display calls and nothing of runs."""

from __future__ import annotations

import uuid
from typing import Any

from lmnb.widgets.pin import CellPin

MimeBundle = dict[str, Any]
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


class Output:
    """Create and `show` it in the main thread; `update` may be called from any thread."""

    def __init__(self) -> None:
        self.display_id = uuid.uuid4().hex
        self._pin = CellPin()

    def show(self, bundle: MimeBundle) -> None:
        """Make the display."""
        from IPython.display import display

        display(bundle, raw=True, display_id=self.display_id)

    def update(self, bundle: MimeBundle) -> None:
        """Replace what the display shows."""
        from IPython.display import update_display

        self._pin.run(lambda: update_display(bundle, raw=True, display_id=self.display_id))

    def write(self, text: str) -> None:
        """Print `text` in the cell, in one write, so that threads do not interleave."""
        import sys

        def emit() -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        self._pin.run(emit)


def bundle(html: str, text: str, widget: Any | None = None) -> MimeBundle:
    """A mime bundle that stands alone; with the live view first where there is one."""
    data: MimeBundle = {"text/html": html, "text/plain": text}
    if widget is not None:
        data[WIDGET_MIME] = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return data
