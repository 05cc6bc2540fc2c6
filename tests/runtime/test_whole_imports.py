"""Interrupting an import of a large package leaves it whole."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmnb.runtime.whole_imports import import_whole

SLOW = """
import time, threading
thread = threading.current_thread().name
for _ in range(20):
    time.sleep(0.05)
done = True
"""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "slow_package.py").write_text(SLOW)
    (tmp_path / "broken_package.py").write_text("raise ValueError('broken on purpose')")
    monkeypatch.syspath_prepend(tmp_path)
    yield "slow_package"
    sys.modules.pop("slow_package", None)


@pytest.mark.timeout(60)
def test_an_interrupt_ends_the_wait_and_not_the_import(slow: str) -> None:
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        import_whole(slow)
    assert time.monotonic() - began < 0.9
    module = sys.modules[slow]
    assert not hasattr(module, "done")
    import_whole(slow)
    assert sys.modules[slow] is module
    assert module.done


def test_other_threads_import_by_themselves(slow: str) -> None:
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
