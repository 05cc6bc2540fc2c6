"""The Databricks notebook runs anywhere, shows HTML, and leaves a run that can be replayed."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "ask": "s['answer']",
    "table": "[dict(row) for row in table]",
    "keep": "[lmnb.replay(saved).status, lmnb.replay(saved).diff(s).same, page.read_text()[:15]]",
}


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("databricks.ipynb", PROBES)


def test_the_program_ran_over_the_table(ran: Any) -> None:
    rows = ran.found["table"]
    assert [row["opinion"] for row in rows] == ["good", "bad", "good", "bad"]
    assert [row["error"] for row in rows] == [None] * 4
    assert all(row["cached_tokens"] > 70 for row in rows), rows  # the examples were computed before any row


def test_the_run_was_kept(ran: Any) -> None:
    assert ran.found["keep"] == ["done", True, "<!doctype html>"]
    assert "Paris" in ran.found["ask"]


def test_everything_is_shown_without_widgets(ran: Any) -> None:
    assert "widget-view" not in ran.html
    assert "prompt tokens reused" in ran.printed
