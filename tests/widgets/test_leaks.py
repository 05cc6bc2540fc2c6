"""Fifty runs in one kernel: nothing of them stays but what is shown, and the notebook's file stays small."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
RUNS = 50

SETUP = """
%load_ext lmnb
import gc, json, threading, tracemalloc
import lmnb
from ipywidgets.widgets import widget as ipywidget
from lmnb.backends.testing import ScriptedBackend
lmnb.set_default_backend(ScriptedBackend(' '.join(f'word{i}' for i in range(60)), alternatives={'word3': ['x']}))

def alive():
    gc.collect()
    kinds = [type(thing).__name__ for thing in gc.get_objects()]
    names = ('Run', 'RunView', 'RunRecord', 'RunModel', 'WidgetSink', 'Feed', 'Stream', 'ProgramState', 'Generated')
    found = {name: kinds.count(name) for name in names}
    found['widgets'] = len(getattr(ipywidget, '_instances', None) or ipywidget.Widget.widgets)  # version 8, 7
    found['RunWidget'] = kinds.count('RunWidget')
    found['threads'] = sum(thread.name.startswith('lmnb-view') for thread in threading.enumerate())
    return found
"""
CELL = "%%lmprog --max-tokens 60\ns += user('Say it.') + assistant(gen('x'))"
COUNT = "print(json.dumps(alive()))"


class Kernel:
    """A kernel, and requests to it that name their cells, as JupyterLab's do."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        # Elsewhere than here: the launcher takes the present folder off the path, which may be where lmnb is.
        self.manager, self.client = start_new_kernel(kernel_name="python3", cwd=str(folder))

    def run(self, code: str, cell: str) -> list[dict[str, Any]]:
        """Run a cell; its messages."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = self.client.session.msg("execute_request", content, metadata={"cellId": cell})
        self.client.shell_channel.send(message)
        found = []
        while True:
            reply = self.client.get_iopub_msg(timeout=30)
            if reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            assert reply["msg_type"] != "error", reply["content"]
            found.append(reply)
            if reply["msg_type"] == "status" and reply["content"]["execution_state"] == "idle":
                return found

    def alive(self) -> dict[str, int]:
        text = "".join(m["content"]["text"] for m in self.run(COUNT, "count") if m["msg_type"] == "stream")
        counts: dict[str, int] = json.loads(text)
        return counts


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    kernel.run(SETUP, "setup")
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


@pytest.mark.timeout(120)
def test_a_cell_that_runs_fifty_times_leaves_one_view(kernel: Kernel) -> None:
    kernel.run(CELL, "a")
    kernel.run(CELL, "a")
    kernel.run("from lmnb.widgets.recent import recent_runs; recent_runs.clear()", "clear")
    before = kernel.alive()
    for _ in range(RUNS):
        kernel.run(CELL, "a")
    kernel.run("recent_runs.clear()", "clear")
    after = kernel.alive()
    assert after == before
    assert after["RunWidget"] == 1


@pytest.mark.timeout(120)
def test_fifty_cells_keep_no_more_than_their_widgets_and_the_last_runs(kernel: Kernel) -> None:
    before = kernel.alive()
    for number in range(RUNS):
        kernel.run(CELL, f"cell {number}")
    after = kernel.alive()
    assert after["RunWidget"] - before["RunWidget"] == RUNS
    for name in ("Run", "Stream", "ProgramState", "Generated"):
        assert after[name] - before[name] <= 16, name
    assert after["threads"] <= before["threads"]


@pytest.mark.timeout(60)
def test_a_runs_output_is_small(kernel: Kernel) -> None:
    messages = kernel.run(CELL, "size")
    shown = [m["content"]["data"] for m in messages if m["msg_type"] in ("display_data", "update_display_data")]
    assert len(json.dumps(shown[-1])) < 25_000  # of which the style sheet is half


def test_a_closed_widget_goes() -> None:
    from lmnb.widgets.host import CacheWidget, RunWidget

    for kind in (RunWidget, CacheWidget):
        widget = kind(lambda: "{}", lambda message: None)
        reference = weakref.ref(widget)
        widget.close()
        del widget
        gc.collect()
        assert reference() is None, sys.getrefcount(reference())
