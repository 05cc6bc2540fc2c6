"""A script that ends while the engine, a thread of it, is at work."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ENDS_EARLY = """
import sys, threading
from lmnb import Runtime, function, gen
runtime = Runtime({dtype})

@function
def say(s):
    s += "Once upon a time" + gen("x", max_tokens=400, ignore_eos=True)

state = say.run(backend=runtime, stream={stream})
next(state.text_iter("x")) if {stream} else threading.Event().wait(0.5)
1 / {divisor}
"""


@pytest.mark.model
@pytest.mark.parametrize(("stream", "divisor", "code"), [(False, 1, 0), (True, 1, 0), (False, 0, 1)])
def test_a_script_that_ends_while_something_generates_ends_as_it_should(stream: bool, divisor: int, code: int) -> None:
    script = _ENDS_EARLY.format(dtype="dtype='float32'", stream=stream, divisor=divisor)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (divisor == 0)
