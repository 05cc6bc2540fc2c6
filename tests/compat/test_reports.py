"""Inputs that users of systems like this have reported, and what must hold for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import lmnb as sgl
from lmnb.errors import GenerationError

STORY = "Once upon a time a ball rolled down the hill, and it stopped"


@sgl.function
def fork_first(s):
    forks = s.fork(2)
    forks += lambda i: f"Branch {i}:" + sgl.gen("x", max_tokens=2)
    forks.join()


@sgl.function
def nothing_first(s):
    s += ""
    s += "" + sgl.user("Hi") + ""
    s += sgl.assistant(sgl.gen("x", max_tokens=2))


@sgl.function
def pick(s, prompt, options):
    s += prompt + sgl.select("x", options)


@sgl.function
def pick_in_a_turn(s, question, options):
    s += sgl.user(question)
    s += sgl.assistant(sgl.select("x", options))


@sgl.function
def told_to_stop(s, stop):
    s += STORY + sgl.gen("x", max_tokens=32, stop=stop)


@sgl.function
def samples(s):
    s += "A person as JSON: " + sgl.gen("x", n=3, regex=r'\{"name": "[A-Z][a-z]{2,7}", "age": [1-9][0-9]\}')


@sgl.function
def row(s, i, broken=False):
    s += f"Row {i}: " + sgl.gen("x", max_tokens=2)
    if broken:
        raise ValueError("a bad row")


def test_braces_and_dollars_reach_the_model_as_they_are(scripted: Any) -> None:
    backend = scripted("ok")

    @sgl.function
    def program(s, code):
        s += "f({x}) {{y}} $name ${HOME} %s \\n " + code + sgl.gen("x")

    program.run("{z} $1").sync()
    assert backend.prompts() == ["f({x}) {{y}} $name ${HOME} %s \\n {z} $1"]


def test_select_without_a_temperature(scripted: Any) -> None:
    scripted()
    assert pick.run("p", ["a"])["x"] == "a"
    assert sgl.select("x", ["a"], temperature=None) == sgl.select("x", ["a"])


def test_options_that_begin_alike_are_both_reachable(scripted: Any) -> None:
    for likely in (["a", "aa"], ["aa", "a"], ["New", "New York"], ["New York", "New"]):
        scripted(
            score=lambda prompt, choice, first=likely[0]: [-0.1 if choice == first else -2.0] * len(choice.split())
        )
        state = pick.run("p ", sorted(likely))
        assert state["x"] == likely[0]
        assert len(state.get_meta_info("x")["normalized_prompt_logprobs"]) == 2


@pytest.mark.model
def test_programs_that_begin_with_nothing(model: Any) -> None:
    state = fork_first.run(temperature=0)
    assert len(state["x"]) == 2
    assert state.text() == ""
    assert nothing_first.run(temperature=0).messages()[0] == {"role": "user", "content": "Hi"}


@pytest.mark.model
def test_scores_are_about_the_choice_and_nothing_else(model: Any) -> None:
    texts = ([" a", " aa"], [" New", " New York"], [" yes", " no"])
    states = [pick.run("The answer is", options) for options in texts]
    turns = (["a", "aa"], ["New", "New York"], ["yes", "no"])
    states += [pick_in_a_turn.run("Answer!", options) for options in turns]
    for options, state in zip((*texts, *turns), states, strict=True):
        meta = state.get_meta_info("x")
        for option, triples in zip(options, meta["input_token_logprobs"], strict=True):
            assert "".join(text for _, _, text in triples) == option
            assert len(triples) == len(model.get_tokenizer().encode(option))
            assert all(logprob < 0 for logprob, _, _ in triples)
    assert pick.run("I love New York. I live in", [" New", " New York"])["x"] == " New York"


@pytest.mark.model
@pytest.mark.parametrize("question", ["Is water wet? Answer yes or no.", "Is fire cold? Answer yes or no."])
def test_a_leading_space_does_not_change_the_ranking(model: Any, question: str) -> None:
    with_space = pick_in_a_turn.run(question, [" yes", " no"])["x"]
    assert pick_in_a_turn.run(question, ["yes", "no"])["x"] == with_space.strip()


@pytest.mark.model
def test_the_earliest_stop_wins_and_none_is_in_the_text(model: Any) -> None:
    free = told_to_stop.run(stop=None, temperature=0)["x"]
    for stops in (["\n", "when it hit", "."], [" the", "."], [free[5:9], free[3:5]]):
        state = told_to_stop.run(stop=stops, temperature=0)
        assert not any(stop in state["x"] for stop in stops)
        found = [at for stop in stops if (at := free.find(stop)) >= 0]
        if found:
            assert free.startswith(state["x"])
            assert len(state["x"]) <= min(found)
            assert state.get_meta_info("x")["finish_reason"]["matched"] in stops


@pytest.mark.model
def test_three_samples_with_one_grammar(model: Any) -> None:
    state = samples.run(temperature=1.5, seed=2)
    people = [json.loads(text) for text in state["x"]]
    assert len({person["name"] for person in people}) > 1
    assert all(10 <= person["age"] <= 99 for person in people)


@pytest.mark.model
def test_sixty_four_rows_again_and_again(model: Any) -> None:
    rows = [{"i": i} for i in range(64)]
    for _ in range(2):
        assert [state.error() for state in row.run_batch(rows, temperature=0)] == [None] * 64
    states = row.run_batch([*rows[:10], {"i": 10, "broken": True}, *rows[11:]], temperature=0)
    assert [index for index, state in enumerate(states) if state.error() is not None] == [10]
    with pytest.raises(GenerationError, match="a bad row"):
        states[10].text()
    assert [state.error() for state in row.run_batch(rows, temperature=0)] == [None] * 64
