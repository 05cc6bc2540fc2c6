"""How far the loading of a model has come, in the cell that loads it."""

from __future__ import annotations

import time
import uuid
from typing import Any

from IPython.display import display, update_display

_PATIENCE_SECONDS, _STEP_SECONDS = 1.0, 0.25
_GIGABYTE = 10**9


class LoadBar:
    """Called with the bytes read so far and all there are (see `load_model`). Shows nothing of a load that is over
    within a second, nor where there is no notebook to show it."""

    def __init__(self, shell: Any) -> None:
        self._in_notebook = getattr(shell, "kernel", None) is not None
        self._began = time.perf_counter()
        self._shown_at = 0.0
        self._display_id: str | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        is_last = done >= total
        if not self._in_notebook or now - self._began < _PATIENCE_SECONDS:
            return
        if now - self._shown_at < _STEP_SECONDS and not is_last:
            return
        self._shown_at = now
        bundle = bar(done, total)
        if self._display_id is None:
            self._display_id = uuid.uuid4().hex
            display(bundle, raw=True, display_id=self._display_id)
        else:
            update_display(bundle, raw=True, display_id=self._display_id)

    def close(self) -> None:
        """The load is over: take the bar away."""
        if self._display_id is not None:
            update_display({"text/plain": "", "text/html": ""}, raw=True, display_id=self._display_id)
            self._display_id = None


def bar(done: int, total: int) -> dict[str, str]:
    """The bar as a display bundle."""
    done = min(done, total)
    text = f"{done / _GIGABYTE:.1f} of {total / _GIGABYTE:.1f} GB of weights read"
    html = f'<progress value="{done}" max="{total}" aria-label="weights read"></progress> {text}'
    return {"text/plain": text, "text/html": html}
