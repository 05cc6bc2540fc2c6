"""What a run tells of each generated token."""

from __future__ import annotations

from typing import Any

from lmnb.backends.testing import ScriptedBackend
from lmnb.language import function, gen
from lmnb.language.events import TokensGenerated
from lmnb.language.token_parts import part, units
from lmnb.runtime.request import TokenLogprob


def told(**options: Any) -> list[list[Any]]:
    @function
    def say(s: Any) -> None:
        s += "Q: " + gen("x")

    state = say.run(backend=ScriptedBackend("one 👩‍🚀 three", token_delay=0.01), **options)
    state.sync()
    return [row for event in state.run.events if isinstance(event, TokensGenerated) for row in event.parts]


def test_parts_cover_the_text_and_tell_when_they_came() -> None:
    parts = told()
    assert sum(row[0] for row in parts) == units("one 👩‍🚀 three") == len("one 👩‍🚀 three") + 2
    times = [row[2] for row in parts]
    assert times == sorted(times)
    assert times[0] >= 0.009
    assert all(len(row) == 3 for row in parts)  # nothing else was asked for


def test_alternatives_come_where_log_probabilities_were_asked_for() -> None:
    first = told(return_logprob=True, top_logprobs_num=2)[0]
    ((text, logprob, top),) = first[4]
    assert text == "one"
    assert top == [["one", logprob]]
    assert first[3] == "free"


def test_what_is_as_usual_is_left_out() -> None:
    backend = ScriptedBackend()
    assert part("ab", 2, backend) == [2, 2]
    assert part("ab", 1, backend, seconds=0.12345) == [2, 1, 0.123]
    assert part("ab", 1, backend, origin="forced") == [2, 1, None, "forced"]
    (entry,) = backend.logprobs("", ["ab"], 0)
    assert part("ab", 1, backend, logprobs=[TokenLogprob(entry.token_id, None)])[4] == [["ab", None, []]]
