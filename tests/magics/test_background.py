"""`--bg`: the cell returns at once, the run goes on, and nothing of it is lost."""

from __future__ import annotations

import pytest
from patience import until

from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import CancelledError, GenerationError
from lmnb.language import set_default_backend


@pytest.fixture
def slow(notebook):
    backend = ScriptedBackend("one two three four five six seven eight", token_delay=0.02)
    set_default_backend(backend)
    return backend


@pytest.fixture
def endless(notebook):
    backend = ScriptedBackend("one " + " ".join(f"w{i}" for i in range(3000)), token_delay=0.01)
    set_default_backend(backend)
    return backend


def test_a_background_cell_returns_at_once_and_its_state_is_waited_for(notebook, slow):
    notebook.run("%%lmprog --bg -o b\ns += 'Count: ' + gen('x')\nlength = len(s['x'])\ns += gen('y', max_tokens=1)")
    assert "length" not in notebook.ns  # the cell is over, and its body still waits
    notebook.run("b.run.wait(30)")
    assert notebook.ns["b"]["x"].endswith("eight")
    assert notebook.ns["b"]["y"] == "one"
    assert notebook.ns["length"] == 39
    assert notebook.ns["b"].run.status == "done"


def test_other_cells_run_meanwhile_with_their_own_state(notebook, slow):
    notebook.run("%%lmprog --bg -o b\ns += gen('x')\nlater = [s['x'][:3] for _ in range(1)]\ns += '.'")
    notebook.run("%%lmprog\ns += 'other ' + gen('z', max_tokens=1)")
    notebook.run("b.run.wait(30)")
    assert notebook.ns["s"].text() == "other one"
    assert notebook.ns["b"].text().endswith("eight.")
    assert notebook.ns["later"] == ["one"]


def test_cancel_stops_it_and_keeps_its_text(notebook, endless):
    notebook.run("%%lmprog --bg -o b\ns += gen('x', max_tokens=3000)\nvalue = s['x']")
    until(lambda: notebook.ns["b"].text_so_far)
    notebook.run("%lmnb status")
    assert "1 run at work. `%lmnb cancel` stops it." in notebook.out
    notebook.run("%lmnb cancel")
    assert notebook.out == "Cancelled 1 run.\n"
    state = notebook.ns["b"]
    assert state.run.status == "cancelled"
    assert state.text().startswith("one")
    assert "w2998" not in state.text()
    with pytest.raises(CancelledError):
        state.sync()
    assert notebook.run("%%lmprog\ns += gen('z', max_tokens=1)\ns['z']") == "one"
    notebook.run("%lmnb cancel")
    assert notebook.out == "No run to cancel.\n"


def test_cancel_stops_runs_whose_body_has_ended(notebook, endless):
    notebook.run("import lmnb\n@lmnb.function\ndef q(s, i):\n    s += gen('x', max_tokens=3000)")
    notebook.run("left = [q.run(i=i) for i in range(40)]\nkept = lmnb.language.open_state(left[0].stream.backend)")
    notebook.run("%lmnb status")
    assert "40 runs at work" in notebook.out
    notebook.run("%lmnb cancel")
    assert notebook.out == "Cancelled 40 runs.\n"
    assert {state.run.status for state in notebook.ns["left"]} == {"cancelled"}
    assert not notebook.ns["kept"].run.cancelled  # an idle state can go on
    notebook.run("%lmnb cancel")
    assert notebook.out == "No run to cancel.\n"


@pytest.mark.parametrize("line", ["%%lmprog", "%%lmprog --bg"])
@pytest.mark.parametrize("rest", ["", "\ns.sync()"], ids=["while it generates", "when all is done"])
def test_readers_get_the_error_of_a_cells_body(notebook, slow, line, rest):
    cell = f"{line} -o b\ns += gen('v', max_tokens=3){rest}\nraise ValueError('boom')"
    if "--bg" in line:
        notebook.run(cell)
        notebook.run("b.run.wait(30)")
    else:
        assert "boom" in notebook.fail(cell)
    state = notebook.ns["b"]
    assert isinstance(state.error(), GenerationError)
    reads = [state.text, state.sync, lambda: state["never"], *([] if rest else [lambda: state["v"]])]
    for read in reads:
        with pytest.raises(GenerationError, match="ValueError: boom"):
            read()
    assert not rest or state["v"] == "one two three"


def test_errors_wait_for_the_reader(notebook):
    set_default_backend(ScriptedBackend(ValueError("broken pipe")))
    notebook.run("%%lmprog --bg\ns += gen('x')")
    with pytest.raises(GenerationError, match="x"):
        notebook.run("s['x']")
    notebook.run("%%lmprog --bg\n1 / 0")
    assert notebook.run("s.run.wait(30)")
    assert notebook.ns["s"].run.status == "failed"
    assert isinstance(notebook.ns["s"].run.error, ZeroDivisionError)


def test_unloading_stops_background_runs(notebook, endless):
    notebook.run("%%lmprog --bg\ns += gen('x', max_tokens=3000)")
    run = notebook.ns["s"].run
    notebook.run("%unload_ext lmnb")
    assert run.wait(30)
    assert run.status == "cancelled"
