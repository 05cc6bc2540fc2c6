"""The batch notebook: a frame goes in, and a frame with the program's variables and its account comes out."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "map": "[list(result.index), list(result['opinion']), list(map(int, result['cached_tokens'])), "
    "list(map(int, result['prompt_tokens']))]",
    "count": "[list(table['agrees'].index), int(table['agrees'].sum())]",
    "fail": "[list(first['about'].notna()), list(first['error'].fillna(''))]",
    "resume": "[list(second['about']), list(second['error'].notna()), [float(t.seconds[0]) for t in (first, second)]]",
    "columns": "[vars(value) for value in stays['returned']]",
}


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("batch.ipynb", PROBES)


def test_each_row_has_its_opinion_and_its_account(ran: Any) -> None:
    index, opinions, cached, prompts = ran.found["map"]
    assert index == [f"r{number:02}" for number in range(1, 13)]
    assert set(opinions) == {"good", "bad"}
    # The common beginning is computed once, before the rows: even the first one finds it.
    assert all(0.4 * prompt < reused < prompt for reused, prompt in zip(cached, prompts, strict=True))


def test_the_program_mostly_agrees_with_the_reader(ran: Any) -> None:
    index, agreed = ran.found["count"]
    assert len(index) == 12
    assert agreed >= 9


def test_a_failing_row_keeps_its_error_and_resume_runs_only_it(ran: Any) -> None:
    known, errors = ran.found["fail"]
    assert known == [True, False, True]
    assert errors[0] == errors[2] == ""
    assert "an empty review" in errors[1]
    about, failed, again = ran.found["resume"]
    assert failed == [False] * 3
    assert len(set(about)) == 3
    assert again[0] == again[1], "a row that was done is not run again"


def test_typed_values_become_columns(ran: Any) -> None:
    stays = ran.found["columns"]
    assert stays == [{"nights": 3, "city": "Oslo"}, {"nights": 2, "city": "Rome"}, {"nights": 5, "city": "Lima"}]
