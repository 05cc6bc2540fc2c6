"""Numbers that a user gives and the shared loop works off: refused beyond a limit, in turns below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, CancelledError
from lmnb.language.loop import background
from lmnb.language.open_state import open_state


def numbers_seen(number: Callable[[], int], last: int) -> set[int]:
    """What others on the loop see of a growing number, each time that they have their turn."""
    seen: set[int] = set()

    def look() -> None:
        seen.add(number())
        if max(seen) < last:
            background.post(look)

    background.post(look)
    return seen


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
    seen = numbers_seen(lambda: len(backend.calls), 20_000)
    s += "hi" + sgl.gen("a", n=20_000)
    assert s["a"] == ["x"] * 20_000
    assert len(seen) > 5


def test_other_programs_go_on_while_many_branches_are_opened() -> None:
    s = open_state(ScriptedBackend())
    s += "hi"
    s.sync()
    seen = numbers_seen(lambda: s.run.num_events, 10_000)
    s.fork(10_000)
    s.sync()
    s.run.finish()
    assert len(seen) > 5


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
