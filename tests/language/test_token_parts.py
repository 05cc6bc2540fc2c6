"""What a run tells of each generated token."""

from __future__ import annotations

from typing import Any

import pytest

from lmnb.backends.testing import ScriptedBackend
from lmnb.language import function, gen
from lmnb.language.events import TokensGenerated
from lmnb.language.token_parts import index_of_units, is_greedy, part, units
from lmnb.runtime.request import SamplingParams, TokenLogprob


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


def test_what_a_mask_made_of_a_probability_is_told() -> None:
    backend = ScriptedBackend()
    (entry,) = backend.logprobs("", ["ab"], 0)
    masked = TokenLogprob(entry.token_id, -2.5, (), -0.12345)
    assert part("ab", 1, backend, origin="masked", logprobs=[masked])[4] == [["ab", -2.5, [], -0.1235]]


def test_greedy_sampling_tells_what_was_ruled_out() -> None:
    backend = ScriptedBackend()
    likely, chosen, other = (backend.logprobs("", [word], 0)[0].token_id for word in ("a", "b", "c"))
    entry = TokenLogprob(chosen, -2.0, ((likely, -0.1), (other, -1.9995), (chosen, -2.0)))
    assert part("b", 1, backend, logprobs=[entry], greedy=True)[4][0][2] == [
        ["a", -0.1, 1],
        ["c", -1.9995],
        ["b", -2.0],
    ]
    assert all(len(row) == 2 for row in part("b", 1, backend, logprobs=[entry])[4][0][2])
    unlikely = TokenLogprob(chosen, None, ((likely, -0.1), (other, -1.5)))  # not among the likeliest two
    assert [row[2:] for row in part("b", 1, backend, logprobs=[unlikely], greedy=True)[4][0][2]] == [[1], [1]]
    assert is_greedy(SamplingParams(temperature=0))
    assert not is_greedy(SamplingParams(temperature=0, repetition_penalty=1.1))
    assert not is_greedy(SamplingParams(temperature=0.1))


def test_a_forced_token_rules_all_others_out() -> None:
    backend = ScriptedBackend()
    likely, chosen = (backend.logprobs("", [word], 0)[0].token_id for word in ("a", "b"))
    entry = TokenLogprob(chosen, -2.0, ((likely, -0.1), (chosen, -2.0)), masked=0.0)
    assert part("b", 1, backend, logprobs=[entry])[4][0][2] == [["a", -0.1, 1], ["b", -2.0]]


def test_programs_pass_on_that_they_are_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def logprobs(backend: ScriptedBackend, prompt: str, tokens: Any, top: int) -> tuple[TokenLogprob, ...]:
        return tuple(TokenLogprob(0, -2.0, ((1, -0.1),)) for _ in tokens)

    monkeypatch.setattr(ScriptedBackend, "logprobs", logprobs)
    monkeypatch.setattr(ScriptedBackend, "token_text", lambda backend, id: "ab"[id])
    for temperature, expected in ((0, ["b", -0.1, 1]), (1, ["b", -0.1])):
        row = told(return_logprob=True, top_logprobs_num=1, temperature=temperature)[0]
        assert row[4][0][2] == [expected]


def test_places_that_browsers_count_are_found() -> None:
    text = "ä👩‍🚀b"
    places = [units(text[:index]) for index in range(len(text) + 1)]
    assert places == [0, 1, 3, 4, 6, 7]
    assert [index_of_units(text, place) for place in places] == list(range(len(text) + 1))
    assert index_of_units(text, 2) == 2  # inside a character: behind it
    assert (index_of_units(text, 99), index_of_units("abc", 99), index_of_units("abc", 2)) == (5, 3, 2)
