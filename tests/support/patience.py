"""Waiting for what must happen: however busy the machine is, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 30.0  # seconds; what takes longer hangs


def until(condition: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Wait until `condition()` is true; returns what it was. An AssertionError after `seconds`."""
    latest = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < latest, f"waited {seconds:g} s in vain"
        time.sleep(0.005)
    return found
