"""What the notebook says of its prompt is so: where the branch parts, what it keeps, what the edit changes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "unsure": "[[token.text, token.probability] for token in tokens]",
    "unsure-place": "[place.index, place.text, [text for text, _ in place.alternatives]]",
    "branch": "[s['answer'], t['answer'], other, t.generated('answer').text, t.run is s.run]",
    "reuse": "[cost['cached_tokens'], cost['prompt_tokens']]",
    "all": "[branch['answer'] for branch in branches]",
    "choice": "c['city']",
    "edit": "str(brief.run.diff(cheerful))",
    "save": "[path.name for path in sorted(folder.iterdir())]",
}


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("debugging_a_prompt.ipynb", PROBES)


def test_the_least_likely_token_is_found(ran: Any) -> None:
    index, text, alternatives = ran.found["unsure-place"]
    tokens = ran.found["unsure"]
    assert tokens[index] == [text, min(probability for _, probability in tokens)]
    assert text in alternatives
    assert len(alternatives) == 5


def test_the_branch_keeps_what_stands_before_it_and_computes_nothing_of_it(ran: Any) -> None:
    answer, branch, other, text, same_run = ran.found["branch"]
    index = ran.found["unsure-place"][0]
    kept = "".join(token for token, _ in ran.found["unsure"][:index])
    assert answer.startswith(kept)
    assert branch.startswith(kept + other)
    assert text == branch != answer
    assert same_run
    cached, prompt = ran.found["reuse"]
    assert prompt - cached == 1


def test_every_alternative_is_gone_on_with(ran: Any) -> None:
    kept = "".join(token for token, _ in ran.found["unsure"][: ran.found["unsure-place"][0]])
    for answer, text in zip(ran.found["all"], ran.found["unsure-place"][2], strict=True):
        assert answer.startswith(kept + text)


def test_the_choice_and_the_edit_are_as_told(ran: Any) -> None:
    assert ran.found["choice"] in ("Oslo", "Bergen", "Bergen in the west of the country")
    assert "You are brief." in ran.found["edit"]
    assert "You are cheerful." in ran.found["edit"]
    assert ran.found["save"] == ["norway.html", "norway.json"]
    assert "branch 0~1" in ran.html
    assert "lmnb-parting" in ran.html
