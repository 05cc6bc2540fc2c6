"""What every test gets: a cache folder outside of the checkout, few threads, no leaked threads, the same draws, and on
request the embedded model or a browser. Fixtures of one part live in that part's own conftest.py.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import platformdirs
import pytest
from patience import PATIENCE

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

    from lmnb.backends.local import Runtime

# Tests are the same on every machine: a GPU is used only where it is asked for, and then wherever "auto" would.
if os.environ.setdefault("LMNB_TEST_DEVICE", "cpu") == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Before torch is imported: more threads than cores make small models slower, and tests less alike.
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Child processes must not find the checkout's `kernels/` on their path.
os.environ["PYTHONSAFEPATH"] = "1"
# Nothing in the tests may reach for a hub; what is not on this machine is not there.
os.environ["HF_HUB_OFFLINE"] = "1"
# The embedded model is converted once for this user, not once for each test.
os.environ.setdefault("LMNB_CACHE", str(platformdirs.user_cache_path("lmnb-tests", appauthor=False)))
# A shell has what it starts in its background ignore interrupts, and processes started from there do so too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TEST_SEED = os.environ.get("LMNB_TEST_SEED", "0")
IN_CI = bool(os.environ.get("CI"))
# Threads that a library keeps for the whole process: an event loop's default executor.
KEPT_THREADS = ("asyncio_",)
CRASHED = pytest.StashKey[bool]()


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Long texts are cut: pytest puts the running test's name into the environment, and no program can be started with
    a variable of more than 128 kB there."""
    if isinstance(val, (str, bytes)) and len(val) > 200:
        return f"{val[:60]!a} and {len(val) - 60} more"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests are begun first: were they the last, one process would run them while others have nothing left.
    Without a browser the browser tests are skipped, loudly; in CI that is an error instead."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    browser_tests = [item for item in items if item.get_closest_marker("e2e")]
    if not browser_tests or find_chromium():
        return
    reason = "no Chromium found: install it (on Debian: apt-get install chromium) to run the browser tests"
    if IN_CI:
        raise pytest.UsageError(reason)
    for item in browser_tests:
        item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """What was imported until here stays; the garbage collector need not look through it again and again."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """pytest and then the interpreter would go through millions of objects several times each, half a minute in all."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def garbage_ends_well() -> Iterator[None]:
    """Look for garbage once more, so that what goes wrong in its end fails the last test. Later on, a process that runs
    tests beside another has nobody to tell."""
    yield
    gc.collect()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """A process of tests that crashed is remembered."""
    node.config.stash[CRASHED] = node.config.stash.get(CRASHED, False) or error is not None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """What ends a process is no chance: the run fails as a whole, and its tests are not run once more."""
    if session.config.stash.get(CRASHED, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a seed get one that depends on the test and on LMNB_TEST_SEED alone, so that a text that is
    sampled is the same in every run; other numbers there look for tests that rely on one text."""
    draws = random.Random(f"{request.node.nodeid} {TEST_SEED}")
    monkeypatch.setattr(secrets, "randbits", draws.getrandbits)


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """After each test, every thread that would keep the process alive has ended."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + PATIENCE
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


@pytest.fixture(scope="module", autouse=True)
def no_leaked_connections() -> Iterator[None]:
    """After each file's tests, the connections that they opened are closed. One that is not is closed by the garbage
    collector, whose warning is an error of whichever test runs our code just then. Seen on Linux only."""
    before = _sockets()
    yield
    deadline = time.monotonic() + PATIENCE
    while leaked := _connections(_sockets() - before):
        if time.monotonic() > deadline:
            pytest.fail(f"connections still open after this file's tests: {leaked}")
        time.sleep(0.02)


def _sockets() -> set[str]:
    """The inodes of this process's sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.readlink(entry.path).removeprefix("socket:[").removesuffix("]"))
    return found


def _connections(inodes: set[str]) -> list[str]:
    """From which port to which those of the sockets go that speak TCP; port 0: it listens."""
    found = []
    for table in ("tcp", "tcp6") if inodes else ():
        with contextlib.suppress(OSError), open(f"/proc/self/net/{table}", encoding="ascii") as lines:
            next(lines)
            for line in lines:
                _, here, there, *others = line.split()
                if others[6] in inodes:
                    found.append(" -> ".join(str(int(place.rpartition(":")[2], 16)) for place in (here, there)))
    return found


@pytest.fixture(scope="session")
def embedded_runtime() -> Iterator[Runtime]:
    """The embedded model, loaded once. Tests that count reused tokens flush its cache first."""
    from lmnb.backends.local import Runtime

    with Runtime() as runtime:
        yield runtime
