"""Ends the views that a cell has shown before, when it runs again: their outputs are gone, and nobody sees them.

Without that, every run of a cell would leave a widget, its messages and its model behind as long as the kernel lives.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from lmnb.widgets.detect import current_cell, current_request


class Superseded:
    """What ends the views of each cell's last run; keeps none of them alive. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_cell: dict[str, tuple[str | None, list[weakref.WeakMethod[Callable[[], None]]]]] = {}

    def add(self, end: Callable[[], None]) -> None:
        """The running cell shows a view that the bound method `end` ends. What its last run has shown ends now."""
        cell, request = current_cell(), current_request()
        if cell is None:
            return  # a front end that does not name its cells
        with self._lock:
            known, ends = self._by_cell.get(cell, (None, []))
            gone = ends if known != request else []
            self._by_cell[cell] = (request, [*(ends if known == request else []), weakref.WeakMethod(end)])
        for old in gone:
            if (end_old := old()) is not None:
                end_old()


superseded = Superseded()
