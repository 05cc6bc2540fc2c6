"""Work in a thread of its own, which ends with it, while the caller waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from lmnb.runtime import threads
from lmnb.runtime.process_end import awaited

T = TypeVar("T")

_WAIT_SECONDS = 0.1  # short waits let a KeyboardInterrupt through on every platform


def apart(
    work: Callable[[], T],
    name: str,
    *,
    meanwhile: Callable[[], None] | None = None,
    stop: Callable[[], None] | None = None,
) -> T:
    """The result of `work`, done in a thread called `name`; raises what it raises. A KeyboardInterrupt ends the wait
    and not the work. `meanwhile` is called here, some ten times a second, as long as the work goes on.
    The process does not end before the work does; `stop` is called when it would, and LmnbError raised afterwards."""
    future: Future[T] = Future()
    threads.start(threading.Thread(target=_work_into, args=(future, work, stop), name=name, daemon=True))
    while not wait((future,), timeout=_WAIT_SECONDS).done:
        if meanwhile is not None:
            meanwhile()
    return future.result()


def _work_into(future: Future[T], work: Callable[[], T], stop: Callable[[], None] | None) -> None:
    try:
        with awaited(stop):
            result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
