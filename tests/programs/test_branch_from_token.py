"""Branches from any token, on the real engine with the fake model: the same tokens, computed once."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest
from context_support import fake_runtime
from patience import until

from lmnb.errors import GenerationError, GrammarError
from lmnb.language import assistant, gen, open_state, user
from lmnb.language.branching import alternatives, ruled_out
from lmnb.language.events import GenFinished
from lmnb.language.loop import background
from lmnb.language.state import ProgramState


def ends(state: ProgramState) -> list[GenFinished]:
    branch = state.stream.branch.id
    return [e for e in state.run.events if isinstance(e, GenFinished) and e.branch == branch]


def ids(state: ProgramState) -> list[int]:
    return [token.id for token in state.tokens()]


def test_the_prompt_is_the_very_tokens_before_and_all_of_them_are_reused() -> None:
    with fake_runtime() as runtime:
        s = open_state(runtime)
        s += (
            user("Tell me.")
            + assistant(gen("x", max_tokens=20, temperature=1.0, seed=4, ignore_eos=True))
            + user("And?")
        )
        s.run.finish()
        (first,) = ends(s)
        prompt = first.reused + first.computed
        said = [token.id for token in s.generated("x")]
        for k in (0, 1, 9, 17):
            t = s.branch_at("x", k, "ZZ")
            t.sync()
            (end,) = ends(t)
            assert ids(t)[: prompt + k] == ids(s)[:prompt] + said[:k]
            assert [token.id for token in t.generated("x")][:k] == said[:k]
            assert t["x"][: len(s["x"])] != s["x"]
            assert (end.reused, end.computed, end.generated) == (prompt + k, 2, 20 - k - 2)


@pytest.mark.parametrize("jump", [True, False])
def test_a_constraint_goes_on_behind_what_is_kept_and_refuses_what_breaks_it(jump: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Rex", "Tom"]}, "legs": {"enum": [2, 4]}},
        "required": ["name", "legs"],
        "additionalProperties": False,
    }
    with fake_runtime(jump_forward=jump) as runtime:
        s = open_state(runtime)
        s += "A pet: " + gen("pet", max_tokens=60, json_schema=json.dumps(schema), temperature=0)
        s.run.finish()
        pet = json.loads(s["pet"])
        other = {"Rex": "T", "Tom": "R"}[pet["name"]]
        place = s["pet"].index(pet["name"])  # the fake model's tokens are bytes
        t = s.branch_at("pet", place, other)
        assert json.loads(t["pet"])["name"] == {"R": "Rex", "T": "Tom"}[other]
        broken = s.branch_at("pet", place, "Bob")
        with pytest.raises(GenerationError, match="does not allow 'B'") as raised:
            broken["pet"]
        assert isinstance(raised.value.__cause__, GrammarError)
        assert s.run.wait(30)
        assert s.run.status == "done"


def test_sampling_goes_on_with_the_next_draws() -> None:
    """Put in the token that was there: the rest is drawn as it was."""
    with fake_runtime() as runtime:
        s = open_state(runtime)
        s += "x" + gen("x", max_tokens=24, temperature=1.0, seed=11, frequency_penalty=0.5)
        s.run.finish()
        tokens = s.generated("x")
        for k in range(0, len(tokens), 5):
            assert s.branch_at("x", k, token_id=tokens[k].id)["x"] == s["x"]


@pytest.mark.timeout(120)
def test_what_is_still_being_generated_is_shared() -> None:
    with fake_runtime(step_seconds=0.004) as runtime:
        s = open_state(runtime)
        s += "A prompt. " + gen("x", max_tokens=300, ignore_eos=True, temperature=1.0, seed=1)
        branches = [s.branch_at("x", 40, text) for text in ("A", "B", "C")]
        for t in branches:
            until(lambda t=t: len(t.text_so_far) >= 60)
        assert not s.stream.drained
        s.run.finish()
        assert len(s.generated("x")) == 300
        assert all(ends(t)[0].reused >= len("A prompt. ") + 40 for t in branches)


def alternatives_of(state: ProgramState, token: int) -> Any:
    record = state.variables["x"].generated
    assert record is not None
    return on_loop(lambda: alternatives(record, token, 5))


def on_loop(question: Callable[[], Awaitable[Any]]) -> Any:
    found: Future[Any] = Future()

    async def ask() -> None:
        try:
            found.set_result(await question())
        except BaseException as error:
            found.set_exception(error)

    background.spawn(ask)
    return found.result(30)


def test_what_else_was_likely_can_be_asked_later() -> None:
    with fake_runtime() as runtime:
        s = open_state(runtime)
        s += "x" + gen("x", max_tokens=12, temperature=0, return_logprob=True, top_logprobs_num=5)
        s.run.finish()
        u = open_state(runtime)
        u += "x" + gen("x", max_tokens=12, temperature=0)
        u.run.finish()
        for k in range(len(s.generated("x"))):
            (noted,), (asked,) = alternatives_of(s, k), alternatives_of(u, k)
            assert [token for token, _ in noted.top] == [token for token, _ in asked.top]


def test_what_a_constraint_rules_out_is_known_and_the_token_taken_has_its_probability() -> None:
    with fake_runtime() as runtime:
        s = open_state(runtime)
        s += "x" + gen("x", regex="[1-9][0-9]{0,2}", max_tokens=5, temperature=0.9, seed=7)
        s.run.finish()
        record = s.variables["x"].generated
        assert record is not None
        said = [token.id for token in s.generated("x")]
        every = range(runtime.new_context().vocab_size)
        for k, chosen in enumerate(said):
            (asked,) = alternatives_of(s, k)
            assert asked.token_id == chosen
            assert asked.logprob is not None
            assert asked.logprob < 0
            assert dict(asked.top).get(chosen, asked.logprob) == pytest.approx(asked.logprob, abs=1e-3)
            out = on_loop(lambda k=k: ruled_out(record, k, every))
            for token_id in (*(i for i, _ in asked.top), chosen, ord("7"), ord("b")):
                broken = s.branch_at("x", k, token_id=token_id).error()
                assert isinstance(getattr(broken, "__cause__", None), GrammarError) == (token_id in out), token_id
        assert chosen not in out


def test_what_else_was_likely_can_be_asked_of_a_run_that_was_stopped() -> None:
    with fake_runtime(step_seconds=0.005) as runtime:
        s = open_state(runtime)
        s += "x" + gen("x", max_tokens=2000, temperature=0, ignore_eos=True)
        until(lambda: len(s.text_so_far) > 20)
        s.run.cancel()
        s.run.finish()
        assert s.run.wait(30)
        assert 10 < len(s.generated("x")) < 2000
        (asked,) = alternatives_of(s, 7)
        assert len(asked.top) == 5
