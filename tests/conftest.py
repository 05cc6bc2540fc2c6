"""What every test gets: a cache folder outside of the checkout, few threads, no leaked threads, and on
request the embedded model or a browser. Fixtures of one part live in that part's own conftest.py.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import platformdirs
import pytest

if TYPE_CHECKING:
    from lmnb.backends.local import Runtime

# Before torch is imported: more threads than cores make small models slower, and tests less alike.
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Child processes must not find the checkout's `kernels/` on their path.
os.environ["PYTHONSAFEPATH"] = "1"
# Nothing in the tests may reach for a hub; what is not on this machine is not there.
os.environ["HF_HUB_OFFLINE"] = "1"
# The embedded model is converted once for this user, not once for each test.
os.environ.setdefault("LMNB_CACHE", str(platformdirs.user_cache_path("lmnb-tests", appauthor=False)))

IN_CI = bool(os.environ.get("CI"))
# Threads that a library keeps for the whole process: an event loop's default executor.
KEPT_THREADS = ("asyncio_",)
THREAD_END_SECONDS = 5.0


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a browser the browser tests are skipped, loudly; in CI that is an error instead."""
    browser_tests = [item for item in items if item.get_closest_marker("e2e")]
    if not browser_tests or find_chromium():
        return
    reason = "no Chromium found: install it (on Debian: apt-get install chromium) to run the browser tests"
    if IN_CI:
        raise pytest.UsageError(reason)
    for item in browser_tests:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """After each test, every thread that would keep the process alive has ended."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + THREAD_END_SECONDS
    while leaked := _leaked(before):
        if time.monotonic() > deadline:
            pytest.fail(f"threads still running after the test: {[thread.name for thread in leaked]}")
        time.sleep(0.02)


def _leaked(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.daemon and not thread.name.startswith(KEPT_THREADS)
    ]


@pytest.fixture(scope="session")
def embedded_runtime() -> Iterator[Runtime]:
    """The embedded model, loaded once. Tests that count reused tokens flush its cache first."""
    from lmnb.backends.local import Runtime

    with Runtime() as runtime:
        yield runtime
