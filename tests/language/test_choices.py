"""The three methods on the numbers that SGLang's own test pins, and a method of one's own."""

from __future__ import annotations

from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, GenerationError
from lmnb.language.events import ChoiceMade, GenFinished

CHOICES = ["organ", "organism", "antidisestablishmentarianism"]
ROWS = [[-0.1], [-0.1, -0.3], [-0.2, 0.0, 0.0, 0.0, 0.0, 0.0, -0.1, -0.1]]
MEANS = [-0.1, -0.2, -0.05]
WITHOUT: list[list[Any]] = [[None], [None, -1.4], [None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]


def triples(rows: list[list[Any]]) -> list[list[list[Any]]]:
    return [[[value, index, None] for index, value in enumerate(row)] for row in rows]


def decide(method: sgl.ChoicesSamplingMethod, without: list[list[Any]] | None = None) -> sgl.ChoicesDecision:
    return method(
        choices=CHOICES,
        normalized_prompt_logprobs=MEANS,
        input_token_logprobs=triples(ROWS),
        output_token_logprobs=[[] for _ in CHOICES],
        unconditional_token_logprobs=None if without is None else triples(without),
    )


def test_token_length_normalized() -> None:
    decision = decide(sgl.token_length_normalized)
    assert decision.decision == "antidisestablishmentarianism"
    assert decision.meta_info["normalized_prompt_logprobs"] == MEANS
    assert sgl.token_length_normalized.scores(decision) == MEANS


def test_greedy_token_selection() -> None:
    decision = decide(sgl.greedy_token_selection)
    assert decision.decision == "organ"
    matrix = decision.meta_info["greedy_logprob_matrix"]
    assert matrix[0] == pytest.approx([-0.1] * 8)
    assert matrix[1] == pytest.approx([-0.1, -0.3] + [-0.2] * 6)
    assert matrix[2] == pytest.approx(ROWS[2])
    assert sgl.greedy_token_selection.scores(decision) == pytest.approx([-0.1, -0.3, -0.2])


def test_unconditional_likelihood_normalized() -> None:
    decision = decide(sgl.unconditional_likelihood_normalized, WITHOUT)
    assert decision.decision == "organism"
    gains = decision.meta_info["normalized_unconditional_prompt_logprobs"]
    assert gains == pytest.approx([-0.1, 0.5, -0.05])
    assert sgl.unconditional_likelihood_normalized.scores(decision) == gains
    with pytest.raises(ArgumentError, match="unconditional"):
        decide(sgl.unconditional_likelihood_normalized)


def test_the_first_of_equals_wins() -> None:
    for method in (sgl.token_length_normalized, sgl.greedy_token_selection):
        decision = method(
            choices=["b", "a"],
            normalized_prompt_logprobs=[-1.0, -1.0],
            input_token_logprobs=triples([[-1.0], [-1.0]]),
            output_token_logprobs=[[], []],
        )
        assert decision.decision == "b"


def scores(prompt: str, choice: str) -> list[float]:
    return {"long": [-0.1, -0.1, -0.4], "short": [-0.3]}[choice] if prompt else [-3.0, -0.1, -0.1][: len(choice) // 2]


def test_select_appends_and_explains() -> None:
    backend = ScriptedBackend(score=scores)

    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "Q: " + sgl.select("pick", ["short", "long"]) + "!"

    state = program.run(backend=backend)
    assert state.text() == "Q: long!"
    assert state["pick"] == "long"
    meta = state.get_meta_info("pick")
    assert meta is not None
    assert meta["normalized_prompt_logprobs"] == pytest.approx([-0.3, -0.2])
    assert [len(row) for row in meta["input_token_logprobs"]] == [1, 3]
    assert meta["output_token_logprobs"] == [[], []]
    (call,) = [call for call in backend.calls if call.kind == "score"]
    assert (call.prompt, call.choices) == ("Q: ", ("short", "long"))
    state.run.wait(30)
    kinds = [type(event) for event in state.run.events]
    assert kinds.index(ChoiceMade) < kinds.index(GenFinished)
    (end,) = [event for event in state.run.events if isinstance(event, GenFinished)]
    assert meta["prompt_tokens"] == end.reused + end.computed == 2 * 3  # "Q", ":", " short" and "Q", ":", " long"
    assert meta["cached_tokens"] == end.reused == 2
    (made,) = [event for event in state.run.events if isinstance(event, ChoiceMade)]
    assert (made.text, made.choices, made.method) == ("long", ["short", "long"], "token_length_normalized")
    assert made.scores == pytest.approx([-0.3, -0.2])


def test_a_log_probability_of_zero_counts() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "p" + sgl.select("pick", ["aa", "b"])

    backend = ScriptedBackend(score=lambda prompt, choice: [-1.0, 0.0] if choice == "aa" else [-0.7])
    assert program.run(backend=backend)["pick"] == "aa"


def test_unconditional_scores_are_asked_for_only_when_needed() -> None:
    asked: list[str] = []

    def score(prompt: str, choice: str) -> list[float]:
        asked.append(prompt)
        return [-1.0]

    @sgl.function
    def program(s: sgl.ProgramState, method: sgl.ChoicesSamplingMethod) -> None:
        s += "p" + sgl.select("pick", ["a", "b"], choices_method=method)

    backend = ScriptedBackend(score=score)
    program.run(sgl.token_length_normalized, backend=backend).sync()
    assert asked == ["p", "p"]
    program.run(sgl.unconditional_likelihood_normalized, backend=backend).sync()
    assert sorted(asked) == ["", "", "p", "p", "p", "p"]


class Longest(sgl.ChoicesSamplingMethod):
    answer: str | None = None

    def __call__(self, *, choices: list[str], **_: Any) -> sgl.ChoicesDecision:
        return sgl.ChoicesDecision(self.answer or max(choices, key=len), {"rule": "longest"})


def test_a_method_of_ones_own(backend: ScriptedBackend) -> None:
    @sgl.function
    def program(s: sgl.ProgramState, method: sgl.ChoicesSamplingMethod) -> None:
        s += "p" + sgl.select("pick", ["a", "bcd", "ef"], choices_method=method)

    state = program.run(Longest())
    assert state["pick"] == "bcd"
    meta = state.get_meta_info("pick")
    assert meta is not None
    assert (meta["rule"], meta["prompt_tokens"], meta["cached_tokens"]) == ("longest", 3, 0)
    wrong = Longest()
    wrong.answer = "not a choice"
    with pytest.raises(GenerationError) as caught:
        program.run(wrong)["pick"]
    assert isinstance(caught.value.__cause__, ArgumentError)
