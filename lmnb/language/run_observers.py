"""Who is told of every new run: views, ledgers, recorders."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from lmnb.language import arguments

if TYPE_CHECKING:
    from lmnb.language.run import Run

logger = logging.getLogger("lmnb")
_keys = itertools.count()
_observers: dict[int, Callable[[Run], None]] = {}


def on_run(callback: Callable[[Run], None]) -> Callable[[], None]:
    """Call `callback` with every new top-level run, in the thread that starts it and before it says anything more
    than `RunStarted`. Returns what takes it back. ArgumentError for what cannot be called."""
    arguments.callback("on_run", "run", callback)
    key = next(_keys)
    _observers[key] = callback

    def end() -> None:
        _observers.pop(key, None)

    return end


def tell_observers(run: Run) -> None:
    """Tell all of a new run; an error in one of them is logged."""
    for observer in list(_observers.values()):
        _tell(observer, run)


def _tell(observer: Callable[[Run], None], run: Run) -> None:
    try:
        observer(run)
    except Exception:
        logger.exception("a view could not be attached to %r", run)
