"""The kernel's interrupt, a real signal: the run ends at once, keeps its text, and the next one is answered."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from patience import until

from lmnb.backends.testing import ScriptedBackend
from lmnb.language import on_run, set_default_backend
from lmnb.language.events import TokensGenerated

CELLS = {
    "waiting for the end": "%%lmprog\ns += 'Count: ' + gen('x')",
    "reading a value": "%%lmprog\ns += 'Count: ' + gen('x')\nvalue = s['x']",
    "in the program's own code": "%%lmprog\ns += 'Count: ' + gen('x')\nimport time\ntime.sleep(30)",
}


def interrupt_while_it_speaks() -> threading.Thread:
    """Send this process the signal a moment after a run's first token, so that the cell waits by then."""
    runs: list[Any] = []
    forget = on_run(runs.append)

    def interrupt() -> None:
        until(lambda: any(isinstance(event, TokensGenerated) for run in runs for event in run.events))
        forget()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_an_interrupt_ends_the_run_and_keeps_its_text(notebook, cell):
    set_default_backend(ScriptedBackend(" ".join(f"tok{i}" for i in range(500)), token_delay=0.05))
    thread = interrupt_while_it_speaks()
    with pytest.raises(KeyboardInterrupt):  # so that Run All stops
        notebook.run(cell)
    thread.join()
    state = notebook.ns["s"]
    assert state.run.status == "cancelled"
    words = state.text().removeprefix("Count: ").split()
    assert 1 <= len(words) < 128
    assert words == [f"tok{i}" for i in range(len(words))]
    assert state.get_meta_info("x")["finish_reason"]["type"] == "cancelled"
    assert notebook.run("%%lmprog\ns += gen('y', max_tokens=1)\ns['y']") == "tok0"


SETUP = """
import lmnb
@lmnb.function
def q(s, i):
    s += gen('x')
def read(i):
    return q.run(i)['x']  # the user's line
"""
CALLS = {
    "reading": "read(0)",
    "batch": "q.run_batch([(i,) for i in range(3)])  # the user's line",
    "batch, row by row": "list(q.run_batch([(0,)], generator_style=True))  # the user's line",
    "waiting": "q.run(0).run.wait()  # the user's line",
    "program that reads": "%%lmprog\ns += gen('x')\ns['x']  # the user's line",
    "program": "%%lmprog\ns += gen('x')  # the user's line",
    "branches": "%%lmprog\nf = s.fork(2)\nf += gen('x')\nf.join()  # the user's line",
    "tokens": "q.run(0).tokens()  # the user's line",
    "text": "q.run(0).text()  # the user's line",
    "generated": "q.run(0).generated('x')  # the user's line",
    "branching": "q.run(0).branch_at('x', 400)  # the user's line",
    "iterating": "list(q.run(0, stream=True).text_iter())  # the user's line",
}


@pytest.mark.timeout(90)
@pytest.mark.parametrize("cell", CALLS.values(), ids=CALLS.keys())
def test_an_interrupt_shows_the_users_lines_only(notebook, cell):
    set_default_backend(ScriptedBackend(" ".join(f"tok{i}" for i in range(500)), token_delay=0.05))
    notebook.run(SETUP)
    thread = interrupt_while_it_speaks()
    shown = notebook.fail(cell)
    thread.join()
    assert "KeyboardInterrupt" in shown
    assert "the user's line" in shown
    for ours in ("lmnb/", "threading", "IPython", "contextlib", "concurrent"):
        assert ours not in shown
    assert len(shown.splitlines()) <= 25


AWAITS = {
    "arun": "await q.arun(0)  # the user's line",
    "arun of a coroutine": "await aq.arun(0)  # the user's line",
    "get": "await q.run(0).get('x')  # the user's line",
    "state": "await q.run(0)  # the user's line",
    "iterating": "async for piece in q.run(0):  # the user's line\n    pass",
}
KERNEL_SETUP = (
    "from lmnb import gen\n"
    + SETUP
    + """
from lmnb.backends.testing import ScriptedBackend
lmnb.set_default_backend(ScriptedBackend(" ".join(f"tok{i}" for i in range(500)), token_delay=0.1))
@lmnb.function
async def aq(s, i):
    s += lmnb.gen('x', max_tokens=400)
    await s.get('x')
"""
)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path_factory.mktemp("kernel")))
    client.execute_interactive(KERNEL_SETUP, timeout=100)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cell", AWAITS.values(), ids=AWAITS.keys())
def test_an_interrupt_of_a_cell_that_awaits_shows_the_users_lines_only(kernel, cell):
    """A kernel turns it into a cancel of the cell's task."""
    manager, client = kernel
    asked = client.execute(cell)
    while (message := client.get_iopub_msg(timeout=30))["msg_type"] != "execute_input" or (
        message["parent_header"]["msg_id"] != asked
    ):
        pass
    time.sleep(0.5)  # until it awaits
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=30)["content"]
    assert reply["status"] == "error"
    shown = "\n".join(reply["traceback"])
    assert reply["ename"] in ("CancelledError", "KeyboardInterrupt")
    assert "the user's line" in re.sub("\x1b\\[[0-9;]*m", "", shown)
    for ours in ("lmnb/", "asyncio/", "concurrent"):
        assert ours not in shown


def test_an_interrupt_while_reading_a_background_run_leaves_it_alone(notebook):
    words = " ".join(f"tok{i}" for i in range(100))
    set_default_backend(ScriptedBackend(words, token_delay=0.02))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the signal must not come before
        thread = interrupt_while_it_speaks()
        notebook.run("%%lmprog --bg -o b\ns += gen('x')")
        notebook.run("b['x']")
    thread.join()
    assert "x" not in notebook.ns["b"]
    assert notebook.run("b['x']") == words
