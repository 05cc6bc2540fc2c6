"""Time limits: one for all tests of a folder, so that what hangs fails soon, and a longer one for constraints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

COMPILE_SECONDS = 100.0


def limit_seconds(items: list[pytest.Item], folder: Path, seconds: float) -> None:
    """Give the tests below `folder` this limit, but for those that have one."""
    for item in items:
        if folder in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(seconds))


@contextmanager
def time_to_compile() -> Iterator[None]:
    """Inside, a constraint may be compiled for `COMPILE_SECONDS` where nothing says for how long: what takes a second
    or two may take much longer beside other work. For engines that are made inside, too."""
    from lmnb.runtime import live_requests, reading_pool
    from lmnb.runtime.compile_pool import CompilePool
    from lmnb.runtime.config import EngineConfig

    usual = EngineConfig().compile_seconds

    def pool(limit_seconds: float) -> CompilePool:
        return CompilePool(limit_seconds=COMPILE_SECONDS if limit_seconds == usual else limit_seconds)

    with (
        mock.patch.object(live_requests, "CompilePool", pool),
        mock.patch.object(reading_pool, "_USUAL_SECONDS", COMPILE_SECONDS),
    ):
        yield
