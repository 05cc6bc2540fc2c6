"""A process ends as its main thread does, whatever goes on in libraries then, and however often it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

_GENERATES = """
import gc, os, signal, sys, threading, time
import lmnb

@lmnb.function
def say(s):
    branches = s.fork(4)
    branches += "Once upon a time" + lmnb.gen("x", max_tokens=1500, ignore_eos=True)
    s += branches[0]["x"]

runtime = lmnb.Runtime(dtype="float32")
"""
_GONE = """
import torch
from concurrent.futures import Future
from lmnb.runtime.messages import Call

def compute(big=torch.ones(2000, 2000)):
    for _ in range(20):
        big @ big

runtime._engine()._loop.inbox.put(Call(compute, Future()))
del runtime
gc.collect()
"""
_INTERRUPTED = """
def interrupt():
    time.sleep(0.7)
    for _ in range(40):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)

threading.Thread(target=interrupt, daemon=True).start()
say.run(backend=runtime)
"""
_LOADS = """
import os, signal, sys, threading, time
import lmnb
"""
_LOADS_IN_A_DAEMON = """
threading.Thread(target=lmnb.Runtime, daemon=True).start()
time.sleep({seconds})
"""
_SLOWLY = """
import torch
import lmnb.runtime.engine
from lmnb.runtime import loading

reads = threading.Event()

def slow(plan, read=loading._read, big=torch.ones(2000, 2000)):
    reads.set()
    {first}
    for _ in range(20):
        big @ big
    return read(plan)

loading._read = slow
"""
_LEFT_LOADING = """
threading.Thread(target=lmnb.Runtime, daemon=True).start()
reads.wait()
"""
_LOAD_INTERRUPTED = """
try:
    lmnb.Runtime()
except KeyboardInterrupt:
    print("interrupted")
"""
_LOADS_TOO_LATE = """
def load():
    threading.main_thread().join()
    try:
        lmnb.Runtime()
    except lmnb.LmnbError as error:
        print(error)

threading.Thread(target=load).start()
"""


def ended(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.model
@pytest.mark.parametrize("seconds", [0.2, 1.0, 2.0])
def test_a_daemon_thread_may_load_when_the_main_thread_ends(seconds: float) -> None:
    done = ended(_LOADS + _LOADS_IN_A_DAEMON.format(seconds=seconds))
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr


@pytest.mark.model
def test_a_daemon_thread_may_be_reading_weights_when_the_main_thread_ends() -> None:
    done = ended(_LOADS + _SLOWLY.format(first="pass") + _LEFT_LOADING)
    assert done.returncode == 0, done.stderr


@pytest.mark.model
def test_a_runtime_that_nobody_holds_may_still_be_in_a_step() -> None:
    done = ended(_GENERATES + _GONE)
    assert done.returncode == 0, done.stderr


@pytest.mark.model
@pytest.mark.skipif(sys.platform == "win32", reason="interrupts are sent otherwise there")
def test_interrupts_do_not_shorten_the_wait() -> None:
    done = ended(_GENERATES + _INTERRUPTED)
    assert done.returncode in (1, 130, -signal.SIGINT), done.stderr
    assert "KeyboardInterrupt" in done.stderr


@pytest.mark.model
@pytest.mark.skipif(not hasattr(os, "kill"), reason="interrupts are sent otherwise there")
def test_a_script_may_catch_the_interrupt_of_a_load_and_end() -> None:
    done = ended(_LOADS + _SLOWLY.format(first="os.kill(os.getpid(), signal.SIGINT)") + _LOAD_INTERRUPTED)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_who_begins_to_load_when_the_main_thread_has_ended_is_told() -> None:
    done = ended(_LOADS + _LOADS_TOO_LATE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the process is ending, so nothing can be loaded"), done.stderr
    assert "Traceback" not in done.stderr
