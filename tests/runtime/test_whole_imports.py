"""Interrupting an import of a large package leaves it whole."""

from __future__ import annotations

import _thread
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmnb.runtime.whole_imports import import_whole

SLOW = """
import threading
from gate import begun, go_on
thread = threading.current_thread().name
begun.set()
assert go_on.wait(60)
done = True
"""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "slow_package.py").write_text(SLOW)
    (tmp_path / "gate.py").write_text("import threading\nbegun, go_on = threading.Event(), threading.Event()")
    (tmp_path / "broken_package.py").write_text("raise ValueError('broken on purpose')")
    monkeypatch.syspath_prepend(tmp_path)
    yield "slow_package"
    for name in ("slow_package", "gate"):
        sys.modules.pop(name, None)


@pytest.mark.timeout(60)
def test_an_interrupt_ends_the_wait_and_not_the_import(slow: str) -> None:
    gate = importlib.import_module("gate")

    def interrupt() -> None:
        assert gate.begun.wait(30)
        time.sleep(0.1)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        import_whole(slow)
    module = sys.modules[slow]
    assert not hasattr(module, "done")
    gate.go_on.set()
    import_whole(slow)
    assert sys.modules[slow] is module
    assert module.done


def test_other_threads_import_by_themselves(slow: str) -> None:
    importlib.import_module("gate").go_on.set()
    thread = threading.Thread(target=import_whole, args=(slow,), name="other")
    thread.start()
    thread.join(timeout=20)
    assert sys.modules[slow].thread == "other"
    started = threading.active_count()
    import_whole(slow)  # there already
    assert threading.active_count() == started


def test_errors_are_the_imports_own(slow: str) -> None:
    with pytest.raises(ValueError, match="broken on purpose"):
        import_whole("broken_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        import_whole("no_such_package")
