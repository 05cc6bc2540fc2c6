"""Who draws runs, for those who ask the language for a picture: it draws nothing itself.

The arrows hold: the language knows this protocol and the name of one module that fulfils it, and imports neither
views nor notebooks. `set_painter` puts another in its place.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from lmnb.language.run_diff import RunDiff
    from lmnb.language.saved_run import SavedRun

DEFAULT_PAINTER = "lmnb.widgets.pictures"


class Painter(Protocol):
    """What can be asked for."""

    def run_html(self, run: SavedRun) -> str:
        """A whole page that needs neither kernel nor network."""
        ...

    def run_picture(self, run: SavedRun) -> str:
        """The run as HTML without scripts, of a size for a notebook."""
        ...

    def show_run(self, run: SavedRun) -> None:
        """Show the run in the running cell."""
        ...

    def diff_html(self, diff: RunDiff) -> str:
        """The differences as HTML that stands alone."""
        ...

    def diff_text(self, diff: RunDiff) -> str:
        """The differences as plain text."""
        ...


_painter: Painter | None = None


def set_painter(painter: Painter | None) -> None:
    """Let `painter` draw from now on; None for the default one."""
    global _painter
    _painter = painter


def painter() -> Painter:
    """The painter; the default one is loaded when it is first asked for."""
    if _painter is None:
        set_painter(cast(Painter, import_module(DEFAULT_PAINTER)))
    assert _painter is not None
    return _painter
