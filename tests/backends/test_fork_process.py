"""A forked process has an engine's objects without its thread: every use says so, and nothing waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
SCRIPT = """
import asyncio, os, sys, threading
from context_support import fake_runtime, generate
import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.language.open_state import open_state
from lmnb.language.unfinished import cancel_runs
from lmnb.errors import LmnbError
from lmnb.runtime.request import Request, SamplingParams

def attempt(name, use):
    try:
        use()
        print(name, "no error", flush=True)
    except LmnbError as error:
        chain = [error]
        while chain[-1].__cause__ is not None:
            chain.append(chain[-1].__cause__)
        told = any("forked" in str(e) for e in chain) or (name == "new" and str(error))
        print(name, "told" if told else repr(error), flush=True)

@lmnb.function
def program(s):
    s += "x" + lmnb.gen("g", max_tokens=4)

runtime = fake_runtime(step_seconds=0.002)
lmnb.set_default_backend(runtime)
assert program.run()["g"] is not None
long = Request(input_ids=(1, 2), sampling=SamplingParams(max_new_tokens=3000, ignore_eos=True))
handle, streamed = runtime.submit(long), runtime.submit(long)

@lmnb.function
def endless(s):
    branches = s.fork(2)
    branches += "x" + lmnb.gen("g", max_tokens=3000, ignore_eos=True)
    groups.append(branches)
    s += lmnb.gen("h", max_tokens=3000, ignore_eos=True)

@lmnb.function
def row(s, max_tokens):
    s += lmnb.gen("g", max_tokens=max_tokens, ignore_eos=True)

@lmnb.function
def waiting(s):
    s += "waits"
    hold.wait()

async def endless_async():
    async for _ in running.text_async_iter("h"):
        pass

groups, hold = [], threading.Event()
done = program.run()
done.sync(), done.run.wait()
running = endless.run(stream=True)
held = waiting.run(stream=True)
rows = row.run_batch([{"max_tokens": 1}, {"max_tokens": 3000}], generator_style=True)
elsewhere = open_state(ScriptedBackend("fine"))
elsewhere += "so"
elsewhere.sync()
next(rows)
next(running.text_iter("h"))
child = os.fork()
if child == 0:
    attempt("program", lambda: program.run()["g"])
    attempt("result", handle.result)
    attempt("events", lambda: list(streamed))
    attempt("status", runtime.status)
    attempt("submit", lambda: runtime.submit(long))
    attempt("value", lambda: running["h"])
    attempt("text", running.text)
    attempt("sync", running.sync)
    attempt("stream", lambda: list(running.text_iter()))
    attempt("variable's stream", lambda: list(running.text_iter("h")))
    attempt("append", lambda: running.__iadd__("more"))
    attempt("join", groups[0].join)
    attempt("branch", lambda: groups[0][1]["g"])
    running.run.cancel()
    attempt("run", running.run.wait)
    attempt("finish", running.run.finish)
    attempt("await", lambda: asyncio.run(running.get("h")))
    attempt("await all", lambda: asyncio.run(running.settled()))
    attempt("await stream", lambda: asyncio.run(endless_async()))
    attempt("await join", lambda: asyncio.run(groups[0].join_async()))
    print("done", len(done["g"]) > 0, done.run.wait(), flush=True)
    attempt("rows", lambda: next(rows))
    attempt("held", held.text)
    attempt("held value", lambda: held["v"])
    attempt("await held", lambda: asyncio.run(held.settled()))
    elsewhere += lmnb.gen("b")
    print("gone on", elsewhere["b"], elsewhere.text(), flush=True)
    print("at work", cancel_runs(), flush=True)
    print("closed", runtime.closed, flush=True)
    runtime.shutdown()
    with fake_runtime() as own:
        print("own", len(own.submit(Request(input_ids=(1,), sampling=SamplingParams(max_new_tokens=3, ignore_eos=True)))
              .result().token_ids), flush=True)
    os._exit(0)
handle.cancel(), streamed.cancel(), running.run.cancel(), rows.close(), hold.set()
_, status = os.waitpid(child, 0)
print("parent", status, runtime.closed, len(program.run()["g"]) > 0, flush=True)
runtime.shutdown()
"""


@pytest.mark.timeout(100)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_is_told_that_the_engine_stayed_behind() -> None:
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "program told",
        "result told",
        "events told",
        "status told",
        "submit told",
        *(
            f"{name} told"
            for name in ("value", "text", "sync", "stream", "variable's stream", "append", "join", "branch")
        ),
        *(f"{name} told" for name in ("run", "finish", "await", "await all", "await stream", "await join")),
        "done True True",
        *(f"{name} told" for name in ("rows", "held", "held value", "await held")),
        "gone on fine sofine",
        "at work 0",
        "closed True",
        "own 3",
        "parent 0 False True",
    ], done.stderr
