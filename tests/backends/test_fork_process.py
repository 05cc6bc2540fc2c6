"""A forked process has an engine's objects without its thread: every use says so, and nothing waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
SCRIPT = """
import os, sys, threading
from context_support import fake_runtime, generate
import lmnb
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
child = os.fork()
if child == 0:
    attempt("program", lambda: program.run()["g"])
    attempt("result", handle.result)
    attempt("events", lambda: list(streamed))
    attempt("status", runtime.status)
    attempt("submit", lambda: runtime.submit(long))
    print("closed", runtime.closed, flush=True)
    runtime.shutdown()
    with fake_runtime() as own:
        print("own", len(own.submit(Request(input_ids=(1,), sampling=SamplingParams(max_new_tokens=3, ignore_eos=True)))
              .result().token_ids), flush=True)
    os._exit(0)
handle.cancel(), streamed.cancel()
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
        "closed True",
        "own 3",
        "parent 0 False True",
    ], done.stderr
