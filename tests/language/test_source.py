"""Who made something knows the line of the program that did, and its text."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.language.source import SourceLine, caller_line, source_text


def test_a_line_is_its_number_and_knows_its_text() -> None:
    line = caller_line()  # this one
    assert line is not None
    assert source_text(line) == "line = caller_line()  # this one"
    assert json.dumps(line) == f"{line}" == str(int(line))
    for twin in (copy.deepcopy(line), pickle.loads(pickle.dumps(line))):
        assert (twin, source_text(twin)) == (line, source_text(line))


def test_a_source_that_cannot_be_read_is_no_error() -> None:
    assert SourceLine(3, "<string>").text == ""
    assert SourceLine(3, "").text == ""
    assert source_text(None) == source_text(3) == ""


def test_requests_are_owned_by_the_line_that_asked() -> None:
    backend = ScriptedBackend("ok")

    @lmnb.function
    def program(s: Any) -> None:
        s += "Well? "
        s += lmnb.gen("x")  # the line that asks

    program.run(backend=backend).sync()
    owners = [call.owner for call in backend.calls if call.kind == "generate"]
    assert [owner.source for owner in owners if owner] == ['s += lmnb.gen("x")  # the line that asks']
