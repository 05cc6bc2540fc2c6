"""The progress bar of a batch: rows, time left, reuse, failures. Knows nothing of what a row does."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any, TextIO


class Progress:
    """Counts rows, from any thread. The rows are all counted before the bar closes, so it ends complete."""

    def __init__(self, total: int, name: str, shown: bool) -> None:
        self._lock = threading.Lock()
        self._bar: Any = None
        if shown:
            from tqdm import tqdm  # the plain one: text works in every front end

            self._bar = tqdm(total=total, desc=name, unit="row", file=_stream())

    def count(self, note: str) -> None:
        """One more row is done; `note` stands behind the bar."""
        if self._bar is None:
            return
        with self._lock:
            self._bar.set_postfix_str(note, False)
            self._bar.update(1)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is None:
            return
        with self._lock:
            self._bar.close()


def _stream() -> TextIO:
    """Where the bar goes: notebooks show stderr in red, as if it were an error."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return sys.stderr if getattr(shell, "kernel", None) is None else sys.stdout
