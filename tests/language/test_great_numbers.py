"""Numbers that a user gives and the shared loop works off: refused beyond a limit, in turns below it."""

from __future__ import annotations

from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, CancelledError
from lmnb.language.loop import background
from lmnb.language.open_state import open_state


@pytest.mark.parametrize("count", [100_001, 10**9, 10**200])
def test_too_many_samples_branches_or_choices_are_refused_by_name(count: int) -> None:
    backend = ScriptedBackend()
    s = open_state(backend)
    with pytest.raises(ArgumentError, match=r"^n may be 100,000 at most, not "):
        s += sgl.gen("a", n=count)
    with pytest.raises(ArgumentError, match=r"^fork\(size\) may be 100,000 at most, not "):
        s.fork(count)
    assert s.text() == ""
    assert not backend.calls


def test_too_many_choices_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^the number of choices may be 100,000 at most, not 100,001: choose in "):
        sgl.select("a", ["yes"] * 100_001)


def test_a_cancel_ends_many_samples_before_they_are_all_begun() -> None:
    def reply(call: Any) -> str:
        s.run.cancel()
        return "x y z"

    backend = ScriptedBackend(reply, token_delay=0.01)
    s = open_state(backend)
    s += "hi" + sgl.gen("a", n=50_000)
    with pytest.raises(CancelledError):
        s.sync()
    assert len(backend.calls) < 5000
    other = open_state(ScriptedBackend("fine"))
    other += sgl.gen("b")
    assert other["b"] == "fine"


def test_other_programs_go_on_while_many_samples_are_drawn() -> None:
    backend = ScriptedBackend("x")
    s = open_state(backend)
    s += "hi" + sgl.gen("a", n=20_000)
    seen = {background.call(lambda: len(backend.calls))}
    while 20_000 not in seen:
        seen.add(background.call(lambda: len(backend.calls)))
    assert len(seen) > 5
    assert s["a"] == ["x"] * 20_000


def test_other_programs_go_on_while_many_branches_are_opened() -> None:
    s = open_state(ScriptedBackend())
    s += "hi"
    s.sync()
    s.fork(10_000)
    seen = {0}
    while max(seen) < 10_000:
        seen.add(background.call(lambda: s.run.num_events))
    assert len(seen) > 5
    s.run.finish()


def test_a_cancel_ends_a_fork_of_many_and_all_its_branches() -> None:
    s = open_state(ScriptedBackend())
    s += "hi " * 1000
    s.sync()
    group = s.fork(10_000)
    s.run.cancel()
    for state in (group[0], group[9_999]):
        state += "more" + sgl.gen("a")
        with pytest.raises(CancelledError):
            state["a"]
    s.run.finish()
