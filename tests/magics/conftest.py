"""A fresh IPython shell with lmnb loaded, and a backend that says what it is told to."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from IPython import version_info
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from lmnb.backends.testing import ScriptedBackend
from lmnb.language import set_default_backend


class Notebook:
    """A shell, and what one would see of it: results, printed text, errors as they are shown."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.ns: dict[str, Any] = shell.user_ns
        self.out = ""
        self.err = ""
        self.outputs: list[Any] = []

    def run(self, cell: str) -> Any:
        """Run a cell; raises its error. Returns its value."""
        result = self._run(cell)
        result.raise_error()
        return result.result

    def fail(self, cell: str) -> str:
        """Run a cell that must fail; returns what the user sees."""
        result = self._run(cell)
        assert not result.success, self.out
        return self.out + self.err

    def show(self, cell: str) -> str:
        """Run a cell; returns what the user sees, whether it fails or not."""
        self._run(cell)
        return self.out + self.err

    def _run(self, cell: str) -> Any:
        with capture_output() as captured:
            result = self.shell.run_cell(cell, store_history=True)
        self.out, self.err, self.outputs = captured.stdout, captured.stderr, captured.outputs
        return result


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("LMNB_VIEW", "off")
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    before = set(threading.enumerate())
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config, colors="nocolor" if version_info >= (9,) else "NoColor")
    shell.extension_manager.load_extension("lmnb")
    yield Notebook(shell)
    shell.extension_manager.unload_extension("lmnb")
    InteractiveShell.clear_instance()
    set_default_backend(None)
    kept = ("lmnb-loop", "lmnb-warm-up", "asyncio_")  # the shared loop, and threads that it keeps
    left = [t for t in threading.enumerate() if t not in before and not t.name.startswith(kept)]
    for thread in left:
        thread.join(30)
    assert [t for t in left if t.is_alive()] == []


@pytest.fixture
def backend() -> ScriptedBackend:
    """The default backend, instead of a model."""
    backend = ScriptedBackend({"city": "Kyoto", "": "ok"})
    set_default_backend(backend)
    return backend
