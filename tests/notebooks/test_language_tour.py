"""The tour runs from top to bottom on the embedded model, and each of its sections shows what it says."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "turns": "texts",
    "gen-meta": "[s['reason'], meta]",
    "shape-value": "[s['date'], s['legs']]",
    "select": "state['opinion']",
    "flow-call": "[reply.run(review=r).ret_value for r in ('The waiter forgot us twice.', 'A wonderful evening!')]",
    "fork-value": "[s['name'], s.text()]",
    "variables": "[s['topic'], s['dialogue'], s['reply']]",
    "calls": "journey.run(countries=['Italy', 'Japan']).text()",
    "rows": "[dict(row) for row in table]",
    "graph": "str(graph)",
    "compare": "[first.run.diff(second).same, str(first.run.diff(second))]",
}


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("language_tour.ipynb", PROBES)


def test_three_ways_of_writing_turns_are_one(ran: Any) -> None:
    first, second, third = ran.found["turns"]
    assert first == second == third
    assert "Name a fruit." in first


def test_a_generation_stops_where_it_was_told(ran: Any) -> None:
    reason, meta = ran.found["gen-meta"]
    assert "." not in reason
    assert meta["finish_reason"] == {"type": "stop", "matched": "."}


def test_constrained_text_has_its_shape(ran: Any) -> None:
    date, legs = ran.found["shape-value"]
    assert re.fullmatch(r"(July|August) \d{1,2}, 19\d\d", date)
    assert re.fullmatch("[0-9]", legs)


def test_choices_and_what_python_makes_of_them(ran: Any) -> None:
    assert ran.found["select"] in ("good", "bad")
    assert ran.printed.count("_likelihood_normalized") >= 1
    sorry, thanks = ran.found["flow-call"]
    assert sorry.startswith("We are sorry")
    assert thanks.startswith("Thank you")


def test_branches_come_back_as_a_list(ran: Any) -> None:
    names, text = ran.found["fork-value"]
    assert len(names) == 3
    assert all(names)
    assert f"My suggestions: {', '.join(names)}." in text


def test_variables_hold_what_the_program_put_there(ran: Any) -> None:
    topic, dialogue, reply = ran.found["variables"]
    assert topic == "rain"
    assert dialogue == f"A: Do you like rain?\nB:{reply}"


def test_a_program_calls_another(ran: Any) -> None:
    assert re.fullmatch(r"From .*Rome.* to .*Tokyo.*\.", ran.found["calls"])


def test_rows_come_back_with_their_account(ran: Any) -> None:
    rows = ran.found["rows"]
    assert [row["error"] for row in rows] == [None] * 3
    assert all(row["opinion"] in ("good", "bad") for row in rows)
    assert all(row["cached_tokens"] > 40 for row in rows)


def test_the_graph_and_the_comparison_can_be_read(ran: Any) -> None:
    assert "gen 'capital'" in ran.found["graph"]
    same, text = ran.found["compare"]
    assert not same
    assert "- user: What is the capital of Italy?" in text
    assert "+ user: What is the capital of Germany?" in text
    assert "PromptToken" in ran.printed
    assert "prompt tokens reused" in ran.printed
