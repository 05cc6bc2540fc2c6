"""API speculative execution, on servers that are played: what is asked, what each variable gets, what fails and how."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.script import ScriptedCall
from lmnb.backends.speculation import SpeculativeBackend, with_speculation
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, GenerationError, ProgramError


class Api(ScriptedBackend):
    """An API: a completion model that goes on from any text, or a chat model that writes whole turns only."""

    def __init__(self, replies: Any, *, chat: bool = False, **options: Any) -> None:
        super().__init__(replies, **options)
        self.is_chat_model = chat
        self.capabilities = replace(ScriptedBackend.capabilities, speculation=True, continues_turn=not chat)

    @property
    def limits(self) -> list[int]:
        return [call.params.max_new_tokens for call in self.calls if call.params is not None]


@pytest.fixture(autouse=True)
def _no_backend() -> Iterator[None]:
    yield
    sgl.set_default_backend(None)


def writing(*texts: str) -> Callable[[ScriptedCall], str]:
    """A model that wants to write one of `texts` (in turn), from wherever the prompt is in it."""
    turns = itertools.cycle(texts)

    def rule(call: ScriptedCall) -> str:
        text = next(turns)
        for size in range(len(text), 0, -1):
            if call.prompt.endswith(text[:size]):
                return text[size:]
        return text

    return rule


FACTS = "Name: Ann Lee\nBorn: 1990\nJob: pilot\n"


@sgl.function(num_api_spec_tokens=40)
def facts(s: Any) -> None:
    s += "Facts.\n"
    s += "Name:" + sgl.gen("name", stop="\n") + "\nBorn:" + sgl.gen("born", stop="\n") + "\nJob:"
    s += sgl.gen("job", stop=["\n", "END"])


def variables(state: Any) -> list[str]:
    return [state["name"], state["born"], state["job"]]


WANTED = [" Ann Lee", " 1990", " pilot"]


# Completion models


def test_three_fields_take_one_call() -> None:
    backend = Api(writing(FACTS))
    state = facts.run(backend=backend)
    assert variables(state) == WANTED
    assert state.text() == "Facts.\nName: Ann Lee\nBorn: 1990\nJob: pilot"
    assert len(backend.calls) == 1
    assert backend.calls[0].params is not None
    assert backend.calls[0].params.stop == ()  # no stop of a field's own ends the call
    assert backend.limits == [128]
    metas = [state.get_meta_info(name) for name in ("name", "born", "job")]
    assert [meta["api_calls"] for meta in metas] == [1, 0, 0]
    assert [meta["finish_reason"]["matched"] for meta in metas] == ["\n"] * 3


def test_the_same_without_speculation_takes_three() -> None:
    backend = Api(writing(FACTS))
    plain = sgl.function(facts.func)
    assert variables(plain.run(backend=backend)) == WANTED
    assert len(backend.calls) == 3


def test_a_constant_that_does_not_follow_costs_one_call_more() -> None:
    backend = Api(writing("Name: Ann Lee\nAge: 35\nJob: pilot\n", FACTS))
    assert variables(facts.run(backend=backend)) == WANTED
    assert len(backend.calls) == 2
    assert backend.prompts()[1].endswith("Name: Ann Lee\nBorn:")


def test_max_tokens_counts_tokens_and_holds() -> None:
    @sgl.function(num_api_spec_tokens=50)
    def words(s: Any) -> None:
        s += "Count:" + sgl.gen("a", max_tokens=2) + sgl.gen("b", max_tokens=3)

    backend = Api(writing("Count: one two three four five six seven"))
    state = words.run(backend=backend)
    assert (state["a"], state["b"]) == (" one two", " three four five")
    assert state.get_meta_info("a")["finish_reason"] == {"type": "length", "length": 2}
    assert state.get_meta_info("a")["completion_tokens"] == 2
    assert backend.limits == [50]


def test_a_text_that_is_too_short_is_gone_on_with() -> None:
    @sgl.function(num_api_spec_tokens=3)
    def words(s: Any) -> None:
        s += "Count:" + sgl.gen("a", max_tokens=2) + sgl.gen("b", max_tokens=4, stop=" six")

    backend = Api(writing("Count: one two three four five six seven"))
    state = words.run(backend=backend)
    assert (state["a"], state["b"]) == (" one two", " three four five")
    # The second call goes on from the three words that the first one gave.
    assert backend.prompts() == ["Count:", "Count: one two three"]
    assert backend.limits == [3, 3]


def test_a_stop_across_two_calls_is_found() -> None:
    @sgl.function(num_api_spec_tokens=2)
    def words(s: Any) -> None:
        s += "Count:" + sgl.gen("a", max_tokens=2, stop="o three") + sgl.gen("b", max_tokens=1)

    backend = Api(writing("Count: one two three four five"))
    state = words.run(backend=backend)
    assert state["a"] == " one two"  # two tokens are the limit, and do not hold the stop
    assert state["b"] == " three"


def test_the_models_own_end_ends_a_field() -> None:
    backend = Api(writing("Name: Ann"))
    state = facts.run(backend=backend)
    assert state["name"] == " Ann"
    state.sync()
    assert backend.prompts()[1] == "Facts.\nName: Ann\nBorn:"


def test_a_templates_stop_ends_the_call_and_the_field() -> None:
    @sgl.function(num_api_spec_tokens=60)
    def talk(s: Any) -> None:
        s += sgl.user("Who?")
        s += sgl.assistant("Name:" + sgl.gen("name", stop=["\n"]) + "\nJob:" + sgl.gen("job"))
        s += sgl.user("Thanks.")
        s += sgl.assistant(sgl.gen("bye"))

    backend = Api(writing("Name: Ann\nJob: pilot<|end|>\n<|user|>\nmore", "Bye.<|end|>"), stop=("<|end|>",))
    state = talk.run(backend=backend)
    assert (state["name"], state["job"], state["bye"]) == (" Ann", " pilot", "Bye.")
    assert len(backend.calls) == 2


def test_other_sampling_is_another_call() -> None:
    @sgl.function(num_api_spec_tokens=40)
    def two(s: Any) -> None:
        s += "Name:" + sgl.gen("name", stop="\n", temperature=0) + "\nBorn:" + sgl.gen("born", stop="\n", temperature=1)

    backend = Api(writing(FACTS))
    assert two.run(backend=backend)["born"] == " 1990"
    assert len(backend.calls) == 2


def test_what_cannot_be_cut_from_a_longer_text_is_asked_for_by_itself() -> None:
    @sgl.function(num_api_spec_tokens=40)
    def two(s: Any) -> None:
        s += "Name:" + sgl.gen("name", stop="\n") + "\nBorn:" + sgl.gen("born", regex=" [0-9]+", max_tokens=8)

    backend = Api(writing(FACTS))
    two.run(backend=backend).sync()
    assert backend.limits == [128, 8]


def test_reading_a_variable_in_between() -> None:
    @sgl.function(num_api_spec_tokens=40)
    def reading(s: Any) -> None:
        s += "Name:" + sgl.gen("name", stop="\n")
        s += "\nBorn:" if s["name"] == " Ann Lee" else "\nNobody:"
        s += sgl.gen("born", stop="\n")

    backend = Api(writing(FACTS))
    assert reading.run(backend=backend)["born"] == " 1990"
    assert len(backend.calls) == 1


def test_branches_draw_for_themselves() -> None:
    @sgl.function(num_api_spec_tokens=40)
    def branches(s: Any) -> None:
        s += "Name:" + sgl.gen("name", stop="\n")
        group = s.fork(2)
        for branch in group:
            branch += "\nBorn:" + sgl.gen("born", stop="\n")
        group.join()

    backend = Api(writing(FACTS))
    assert branches.run(backend=backend)["born"] == [" 1990", " 1990"]
    assert len(backend.calls) == 1 + 1 + 2  # the field, the hint, and a call for each branch


def test_rows_at_once_and_bind() -> None:
    @sgl.function(num_api_spec_tokens=40)
    def row(s: Any, who: str, sep: str) -> None:
        s += who + ":" + sgl.gen("a", stop=sep) + sep + sgl.gen("b", stop=sep)

    backend = Api(lambda call: f"{call.prompt[:-1]}1;{call.prompt[:-1]}2;")
    bound = row.bind(sep=";")
    assert bound.num_api_spec_tokens == 40
    states = bound.run_batch([{"who": f"w{i}"} for i in range(20)], backend=backend, num_threads=8)
    assert [(state["a"], state["b"]) for state in states] == [(f"w{i}1", f"w{i}2") for i in range(20)]
    assert len(backend.prompts()) == 20


def test_streams_come_whole() -> None:
    backend = Api(writing(FACTS))
    state = facts.run(backend=backend, stream=True)
    assert "".join(state.text_iter()) == state.text()


def test_a_backend_with_a_cache_of_its_own_needs_none() -> None:
    backend = ScriptedBackend(writing(FACTS))
    assert with_speculation(backend, 40) is backend
    assert variables(facts.run(backend=backend)) == WANTED
    assert len(backend.calls) == 3


def test_a_program_within_does_not_inherit_it() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        s += "Name:" + sgl.gen("name", stop="\n")

    @sgl.function(num_api_spec_tokens=40)
    def outer(s: Any) -> None:
        s += "Facts: " + inner.run()["name"]

    backend = Api(writing(FACTS))
    outer.run(backend=backend).sync()
    assert backend.calls[0].params is not None
    assert backend.calls[0].params.stop == ("\n",)
    wrapped = with_speculation(backend, 4)
    assert isinstance(wrapped, SpeculativeBackend)
    assert with_speculation(wrapped, None) is backend


def test_the_number_is_checked() -> None:
    with pytest.raises(ArgumentError, match="num_api_spec_tokens"):
        sgl.function(facts.func, 0).run(backend=Api("x"))


# Chat models


@sgl.function(num_api_spec_tokens=80)
def card(s: Any) -> None:
    s += sgl.user("Write a card.")
    s += sgl.assistant(
        "Name:"
        + sgl.gen("name", stop="\n")
        + "\nBorn:"
        + sgl.gen("born", stop=["\n", ";"])
        + "\nJob:"
        + sgl.gen("job", stop="\n")
    )


def chat(*replies: Any, **options: Any) -> Api:
    return Api(list(replies), chat=True, **options)


def test_a_chat_turn_is_one_call() -> None:
    backend = chat(FACTS)
    state = card.run(backend=backend)
    assert variables(state) == WANTED
    assert backend.prompts() == ["<|user|>\nWrite a card.<|end|>\n<|assistant|>\n"]
    assert backend.limits == [80]
    assert state.messages()[1]["content"] == "Name: Ann Lee\nBorn: 1990\nJob: pilot"


def test_a_reply_that_strays_is_thrown_away_whole() -> None:
    backend = chat("Name: Bob\nAge: 7\n", FACTS)
    state = card.run(backend=backend)
    assert variables(state) == WANTED  # nothing of Bob is left
    assert len(backend.calls) == 2
    assert len(set(backend.prompts())) == 1  # the second try is asked as the first was


def test_the_last_failure_is_told() -> None:
    backend = chat("Sure! Name: Ann", "Name: Ann\nAge: 7", "Name: Ann\nAge: 8", FACTS)
    state = card.run(backend=backend)
    with pytest.raises(GenerationError) as caught:
        state["name"]
    assert isinstance(caught.value.__cause__, ProgramError)
    assert "in 3 tries" in str(caught.value)
    assert r"'\nBorn:'" in str(caught.value)
    assert r"'\nAge: 8'" in str(caught.value)
    assert len(backend.calls) == 3
    assert state.text_so_far.endswith("Name:")


def test_templates_with_stops_and_lists_of_stops() -> None:
    backend = chat("Name: Ann Lee\nBorn: 1990\nJob: pilot", stop=("<|end|>",))
    assert variables(card.run(backend=backend)) == WANTED


def test_reading_inside_the_turn_does_not_wait_for_its_end() -> None:
    @sgl.function(num_api_spec_tokens=80)
    def reading(s: Any) -> None:
        s += sgl.user("Write a card.")
        with s.assistant():
            s += "Name:" + sgl.gen("name", stop="\n")
            s += "\nBorn:" if s["name"] == " Ann Lee" else "\nNobody:"
            s += sgl.gen("born", stop="\n")

    backend = chat(FACTS)
    assert reading.run(backend=backend)["born"] == " 1990"
    assert len(backend.calls) == 1


def test_a_turn_that_goes_on_unforeseen_is_asked_for_again() -> None:
    @sgl.function(num_api_spec_tokens=80)
    def reading(s: Any) -> None:
        s += sgl.user("Write a card.")
        with s.assistant():
            s += "Name:" + sgl.gen("name", stop="\n")
            s += "\nJob:" + sgl.gen("job", stop="\n")

    backend = chat(FACTS, "Name: Ann Lee\nJob: cook\n")
    state = reading.run(backend=backend)
    assert (state["name"], state["job"]) == (" Ann Lee", " cook")
    strays = chat(FACTS, "Name: Bob\nJob: cook\n", "Name: Ann Lee\nJob: pilot\n")
    assert reading.run(backend=strays)["job"] == " pilot"  # Bob's reply does not fit what was read already


def test_parameters_of_one_turn_must_agree() -> None:
    @sgl.function(num_api_spec_tokens=80)
    def two(s: Any) -> None:
        s += sgl.user("Write a card.")
        s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nBorn:" + sgl.gen("born", temperature=0.5))

    with pytest.raises(GenerationError, match="same temperature"):
        two.run(backend=chat(FACTS))["born"]


def test_several_turns() -> None:
    @sgl.function(num_api_spec_tokens=80)
    def turns(s: Any) -> None:
        for index in range(2):
            s += sgl.user(f"Card {index}.")
            s += sgl.assistant(
                "Name:" + sgl.gen(f"name{index}", stop="\n") + "\nBorn:" + sgl.gen(f"born{index}", stop="\n")
            )

    backend = chat("Name: Ann\nBorn: 1\n", "Name: Bob\nBorn: 2\n")
    state = turns.run(backend=backend)
    assert [state[name] for name in ("name0", "born0", "name1", "born1")] == [" Ann", " 1", " Bob", " 2"]
    assert len(backend.calls) == 2


def test_many_states_at_once() -> None:
    backend = Api(FACTS, chat=True, token_delay=0.001)
    states = card.run_batch([{} for _ in range(10)], backend=backend, num_threads=10)
    assert [variables(state) for state in states] == [WANTED] * 10
    assert len(backend.calls) == 10


def test_a_cancel_keeps_what_was_told() -> None:
    backend = Api(" word" * 4000, chat=True, token_delay=0.005)

    @sgl.function(num_api_spec_tokens=4000)
    def long(s: Any) -> None:
        s += sgl.user("?")
        s += sgl.assistant(sgl.gen("x"))

    state = long.run(backend=backend, stream=True)
    while not backend.calls:
        state.stream.signal.wait(lambda: bool(backend.calls), 0.01)
    state.stream.branch.run.cancel()
    assert state.text().endswith("<|assistant|>\n")


def test_prompt_tokens_sent() -> None:
    """The paper's three fields behind a few-shot prompt: about a third of the prompt tokens."""
    few_shot = "Name: Eve\nBorn: 1950\nJob: judge\n\n" * 20

    def program(s: Any) -> None:
        s += few_shot
        s += (
            "Name:"
            + sgl.gen("name", stop="\n")
            + "\nBorn:"
            + sgl.gen("born", stop="\n")
            + "\nJob:"
            + sgl.gen("job", stop="\n")
        )

    def prompt_tokens(spec: int | None) -> int:
        state = sgl.function(program, spec).run(backend=Api(writing(FACTS)))
        assert variables(state) == WANTED
        return sum(state.get_meta_info(name)["prompt_tokens"] for name in ("name", "born", "job"))

    assert 2.9 < prompt_tokens(None) / prompt_tokens(40) < 3.2


def test_what_such_contexts_do_not_have_is_refused_and_not_looked_for() -> None:
    backend = Api(writing(FACTS))
    backend.capabilities = replace(backend.capabilities, concatenates_caches=True, resumes=True)
    state = facts.run(backend=backend)
    assert variables(state) == WANTED
    with pytest.raises(ProgramError, match="tokens"):
        state.tokens()
    with pytest.raises(ProgramError, match="cannot concatenate the caches"):
        state.fork(2).join("concate_and_append", approximate=True)
