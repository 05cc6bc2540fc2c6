"""The anywidgets behind the views: a front-end module each, one lazy snapshot, numbered messages. Imported lazily.

It holds no state of its own: `make_snapshot` is asked whenever a front end wants the whole picture, which costs
nothing while nobody does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from lmnb.widgets.run_html import STATIC
from lmnb.widgets.shell_channel import mend_shell_channel


def _serialise(_value: object, widget: Any) -> str:
    return str(widget.make_snapshot())


def _text(name: str) -> str:
    """A module or sheet as text. Of a path, anywidget would follow the file, and so keep every widget for good."""
    return (STATIC / name).read_text(encoding="utf-8")


class ViewWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """`make_snapshot() -> JSON text`; `on_message(message)` gets what the front end sends, on any thread."""

    snapshot = traitlets.Unicode("").tag(sync=True, to_json=_serialise)
    picture = traitlets.Unicode("").tag(sync=True)  # class name of its pictures, which it hides while it is seen

    def __init__(
        self, make_snapshot: Callable[[], str], on_message: Callable[[dict[str, Any]], None], **traits: Any
    ) -> None:
        self.make_snapshot = make_snapshot  # before the comm opens: opening it sends the first snapshot
        self._handle = on_message
        mend_shell_channel()  # before a front end has something to ask
        super().__init__(picture=f"lmnb-still-{uuid.uuid4().hex[:12]}", **traits)
        self.on_msg(self._on_message)

    def close(self) -> None:
        """Take the widget from every front end, and let go of it."""
        layout = getattr(self, "layout", None)
        super().close()
        if layout is not None:  # ipywidgets would keep it
            layout.close()

    def __repr__(self) -> str:  # ipywidgets' own would serialise every trait
        return f"{type(self).__name__}()"

    def post(self, message: dict[str, Any]) -> None:
        """Send one message to every front end that shows this."""
        self.send(message)
        # ipykernel 7.4 routes a comm's messages to the shell that last published on it, which is the busy main
        # one: a click on Cancel would wait for the cell to end. Without this hook they go to a free subshell.
        if getattr(self.comm, "_reply_subshell_for", None) is not None:
            self.comm._reply_subshell_for = None

    def save(self) -> None:
        """Send the snapshot as state, so that saved notebooks hold the final picture."""
        self.send_state("snapshot")

    def _on_message(self, _widget: object, content: Any, _buffers: object) -> None:
        if isinstance(content, dict) and isinstance(content.get("type"), str):
            self._handle(content)


class RunWidget(ViewWidget):
    """Draws a run. `saved`: no model goes on with it, so no branch is offered."""

    saved = traitlets.Bool(False).tag(sync=True)
    _esm = _text("run.js")
    _css = _text("run.css")


class CacheWidget(ViewWidget):
    """Draws a cache tree."""

    _esm = _text("tree.js")
    _css = _text("tree.css")
