"""What the compatibility tests share: small data, a watchdog, and the two places where programs run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from time_limits import limit_seconds

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend

if TYPE_CHECKING:
    from lmnb.backends.local import Runtime

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limit_seconds(items, HERE, 60)


@pytest.fixture(autouse=True)
def _no_default_left() -> Iterator[None]:
    yield
    sgl.set_default_backend(None)


@pytest.fixture
def data() -> Callable[[str], Any]:
    """Reads a file of tests/compat/data: a list of rows."""

    def read(name: str) -> Any:
        return json.loads((HERE / "data" / f"{name}.json").read_text(encoding="utf-8"))

    return read


@pytest.fixture
def scripted() -> Callable[..., ScriptedBackend]:
    """Makes a scripted backend the default one."""

    def make(*args: Any, **kwargs: Any) -> ScriptedBackend:
        backend = ScriptedBackend(*args, **kwargs)
        sgl.set_default_backend(backend)
        return backend

    return make


@pytest.fixture(scope="module")
def loaded(embedded_runtime: Runtime) -> Runtime:
    """The embedded model, with an empty cache for each file of tests."""
    embedded_runtime.flush_cache()
    return embedded_runtime


@pytest.fixture
def model(loaded: Runtime) -> Runtime:
    """The embedded model as the default backend."""
    sgl.set_default_backend(loaded)
    return loaded
