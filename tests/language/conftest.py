"""What the language's tests share: a scripted backend as default, a watchdog, and a check that nothing is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from patience import until
from time_limits import limit_seconds

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.language import cancel_runs
from lmnb.language.loop import background

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limit_seconds(items, HERE, 90)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = background.num_tasks  # what an earlier test has left is told there
    yield
    lmnb.set_default_backend(None)
    try:
        until(lambda: background.num_tasks <= before)
    except AssertionError:
        cancel_runs()
        pytest.fail("a stream still runs after the test")


@pytest.fixture
def pieces_before() -> Callable[[type[BaseException], Iterable[str]], list[str]]:
    """What an iterable yields before it raises the error that it must raise."""

    def read(error: type[BaseException], items: Iterable[str]) -> list[str]:
        pieces: list[str] = []
        try:
            for item in items:
                pieces.append(item)  # noqa: PERF402  # kept when the next one raises
        except error:
            return pieces
        raise AssertionError(f"ended without {error.__name__}, after {pieces}")

    return read


@pytest.fixture
def backend() -> ScriptedBackend:
    made = ScriptedBackend()
    lmnb.set_default_backend(made)
    return made
