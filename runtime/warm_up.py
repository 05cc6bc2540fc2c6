"""What the first constraint of a model would wait for, and hold others up by, done in the background of its loading.

Nobody waits for it. Tables of the vocabulary are made while the weights are read, and are there before most models are.
The largest library is imported when the model is there and no engine computes anything, so that neither a load nor a
token is slower for it; if a constraint needs it before, its compilation imports it. All that is Python: threads take
short turns meanwhile, so that it delays others by little.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from lmnb.errors import LmnbError
from lmnb.runtime.process_end import awaited
from lmnb.runtime.short_turns import ShortTurns


def warm_up(*steps: Callable[[], None], when: Callable[[], bool] | None = None) -> threading.Thread:
    """Take `steps`, one after another, in a thread of their own; if there is a `when`, once it has returned, and only
    if it is true. What fails is tried again when it is needed, and told then."""
    thread = threading.Thread(target=_run, args=(steps, when), name="lmnb-warm-up", daemon=True)
    with suppress(RuntimeError):  # there may be no more threads
        thread.start()
    return thread


def _run(steps: Sequence[Callable[[], None]], when: Callable[[], bool] | None) -> None:
    if when is not None and not when():
        return
    with suppress(LmnbError), awaited(), ShortTurns():  # a process that ends during an import may crash
        for step in steps:
            with suppress(Exception):  # of whatever kind: who needs it meets it
                step()
