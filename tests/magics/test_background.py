"""`--bg`: the cell returns at once, the run goes on, and nothing of it is lost."""

from __future__ import annotations

import time

import pytest

from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import CancelledError, GenerationError
from lmnb.language import set_default_backend


@pytest.fixture
def slow(notebook):
    backend = ScriptedBackend("one two three four five six seven eight", token_delay=0.02)
    set_default_backend(backend)
    return backend


def test_a_background_cell_returns_at_once_and_its_state_is_waited_for(notebook, slow):
    start = time.monotonic()
    notebook.run("%%lmprog --bg -o b\ns += 'Count: ' + gen('x')\nlength = len(s['x'])\ns += gen('y', max_tokens=1)")
    assert time.monotonic() - start < 0.1
    assert "length" not in notebook.ns
    notebook.run("b.run.wait(3)")
    assert notebook.ns["b"]["x"].endswith("eight")
    assert notebook.ns["b"]["y"] == "one"
    assert notebook.ns["length"] == 39
    assert notebook.ns["b"].run.status == "done"


def test_other_cells_run_meanwhile_with_their_own_state(notebook, slow):
    notebook.run("%%lmprog --bg -o b\ns += gen('x')\nlater = [s['x'][:3] for _ in range(1)]\ns += '.'")
    notebook.run("%%lmprog\ns += 'other ' + gen('z', max_tokens=1)")
    notebook.run("b.run.wait(3)")
    assert notebook.ns["s"].text() == "other one"
    assert notebook.ns["b"].text().endswith("eight.")
    assert notebook.ns["later"] == ["one"]


def test_cancel_stops_it_and_keeps_its_text(notebook, slow):
    notebook.run("%%lmprog --bg -o b\ns += gen('x')\nvalue = s['x']")
    time.sleep(0.1)
    notebook.run("%lmnb status")
    assert "1 background run(s)" in notebook.out
    start = time.monotonic()
    notebook.run("%lmnb cancel")
    assert time.monotonic() - start < 1
    assert notebook.out == "Cancelled 1 background run(s).\n"
    state = notebook.ns["b"]
    assert state.run.status == "cancelled"
    assert state.text().startswith("one")
    assert "eight" not in state.text()
    with pytest.raises(CancelledError):
        state.sync()
    assert notebook.run("%%lmprog\ns += gen('z', max_tokens=1)\ns['z']") == "one"
    notebook.run("%lmnb cancel")
    assert notebook.out == "No background run to cancel.\n"


def test_errors_wait_for_the_reader(notebook):
    set_default_backend(ScriptedBackend(ValueError("broken pipe")))
    notebook.run("%%lmprog --bg\ns += gen('x')")
    with pytest.raises(GenerationError, match="x"):
        notebook.run("s['x']")
    notebook.run("%%lmprog --bg\n1 / 0")
    assert notebook.run("s.run.wait(3)")
    assert notebook.ns["s"].run.status == "failed"
    assert isinstance(notebook.ns["s"].run.error, ZeroDivisionError)


def test_unloading_stops_background_runs(notebook, slow):
    notebook.run("%%lmprog --bg\ns += gen('x')")
    run = notebook.ns["s"].run
    notebook.run("%unload_ext lmnb")
    assert run.wait(1)
    assert run.status == "cancelled"
