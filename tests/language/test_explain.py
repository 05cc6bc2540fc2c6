"""What a select tells views of its decision: tokens, every method that was measured, and what may mislead."""

from __future__ import annotations

from typing import Any

import pytest

from lmnb.backends.testing import ScriptedBackend
from lmnb.language import function, greedy_token_selection, select
from lmnb.language.events import ChoiceMade, from_json, to_json
from lmnb.language.explain import warnings


def rows(*lengths: int, each: float = -1.0) -> list[list[list[Any]]]:
    return [[["x", each, None]] * length for length in lengths]


def decision(scores: dict[str, list[float]], method: Any = None, **options: Any) -> ChoiceMade:
    @function
    def ask(s: Any) -> None:
        s += "Q: " + select("x", choices=list(scores), **({"choices_method": method} if method else {}))

    backend = ScriptedBackend(score=lambda prompt, choice: scores[choice] if prompt else [-3.0] * len(scores[choice]))
    state = ask.run(backend=backend, **options)
    state.sync()
    (made,) = [event for event in state.run.events if isinstance(event, ChoiceMade)]
    return made


def test_methods_that_disagree_stand_side_by_side() -> None:
    # "a" begins best; "b" is best on average.
    made = decision({"a": [-0.1, -5.0], "b": [-0.5, -0.5]}, greedy_token_selection)
    assert [(m["name"], m["picked"]) for m in made.methods] == [
        ("greedy_token_selection", 0),
        ("token_length_normalized", 1),
    ]
    assert made.methods[1]["scores"] == [-2.55, -0.5]
    assert [[entry[1:] for entry in row] for row in made.tokens] == [
        [[-0.1, None], [-5.0, None]],
        [[-0.5, None], [-0.5, None]],
    ]
    assert from_json(to_json(made)) == made


def test_asking_for_logprobs_measures_every_method() -> None:
    made = decision({"a": [-0.1], "b": [-0.5]}, return_logprob=True, top_logprobs_num=2)
    assert [m["name"] for m in made.methods][2] == "unconditional_likelihood_normalized"
    assert made.methods[2]["scores"] == [pytest.approx(2.9), pytest.approx(2.5)]
    assert made.tokens[0][0][1:] == [-0.1, -3.0]


def test_length_bias_is_told_only_where_it_decides() -> None:
    (warning,) = warnings(["b", "a long one"], [[["b", -1.0, None]], [["x", -0.5, None]] * 4], "Q\n")
    assert "1 to 4 tokens" in warning
    assert "prefers “a long one”" in warning
    assert warnings(["b", "a long one"], rows(1, 4), "Q\n") == []
    assert warnings(["b", "c"], rows(2, 2), "Q\n") == []


def test_beginnings_of_others_are_told() -> None:
    (warning,) = warnings(["yes", "yes, please", "no"], rows(1, 1, 1), "\n")
    assert "“yes” of “yes, please”" in warning


@pytest.mark.parametrize(
    ("choices", "prompt", "said"),
    [
        ([" yes", " no"], "Answer: ", "rarely writes two"),
        ([" yes", "no"], "Answer:", "not written alike"),
        (["yes", "no"], "Answer:", "no choice begins with a space"),
        ([" yes", " no"], "Answer:", None),
        (["yes", "no"], "assistant\n", None),
        (["yes", "no"], "Answer: ", None),
        (["yes", "no"], "", None),
    ],
)
def test_leading_spaces(choices: list[str], prompt: str, said: str | None) -> None:
    found = warnings(choices, rows(1, 1), prompt)
    assert (said is None) == (found == [])
    assert said is None or said in found[0]


def test_a_model_that_only_chooses_has_one_verdict() -> None:
    made = decision({"a": [-0.1], "b": [-0.5]})
    assert made.methods[0]["name"] == made.method
