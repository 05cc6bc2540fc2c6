"""The DSPy notebook: a small program that looks things up, taught by two examples, on the engine in the kernel."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("dspy", "3.4", reason="needs dspy, 3.4 or newer")
pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "search": "[search('How long is the river?'), search('Where do penguins swim?', k=2)[0]]",
    "examples": "[[entry['outputs'][0] for entry in lm.history], len(taught.answer.demos)]",
    "batch": "[[answer.answer, answer.get_lm_usage()[lm.model]] for answer in answers]",
    "types": "[[person.year, person.name] for person in people]",
    "ledger": "__import__('dataclasses').asdict(lm.backend.status())",
}


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("dspy_rag.ipynb", PROBES)


def test_the_passages_are_found(ran: Any) -> None:
    (river,), penguins = ran.found["search"]
    assert river.startswith("The river Tam")
    assert penguins.startswith("Penguins")


def test_two_examples_teach_it(ran: Any) -> None:
    (untaught, taught), num_examples = ran.found["examples"]
    assert "212" not in untaught
    assert "212 kilometres" in taught
    assert num_examples == 2


def test_the_answers_are_from_the_passages(ran: Any) -> None:
    keeper, bread, bicycle, penguins = (answer for answer, _ in ran.found["batch"])
    assert "Martha Finch" in keeper
    assert "yeast" in bread
    assert "Otto Brandt" in bicycle
    assert "southern" in penguins


def test_most_of_each_prompt_was_cached(ran: Any) -> None:
    for _, usage in ran.found["batch"]:
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.75 * usage["prompt_tokens"]
    status = ran.found["ledger"]
    assert status["reused_tokens"] > status["prompt_tokens"] / 2


def test_typed_fields_have_their_types(ran: Any) -> None:
    assert ran.found["types"] == [[1871, "Martha Finch"], [1904, "Otto Brandt"]]


def test_the_calls_are_in_the_views(ran: Any) -> None:
    assert "dspy     SmolLM2-135M-Instruct" in ran.printed
    assert "Cache tree: " in ran.printed
