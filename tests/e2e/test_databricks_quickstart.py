"""A Databricks-like front end runs the quickstart to its end, and its answers can be read without any widget."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(700)]

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


def test_the_quickstart_runs_to_its_end(tmp_path):
    from harness.databricks import html, printed, run_like_databricks

    committed = nbformat.read(QUICKSTART, as_version=4)
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    notebook, dropped = run_like_databricks([cell.source for cell in code], tmp_path)
    ran = {before.id: after for before, after in zip(code, notebook.cells, strict=True)}
    assert dropped == {}, "nothing was sent that such a front end does not show"
    assert all("application/vnd.jupyter.widget-view+json" not in str(cell.outputs) for cell in ran.values())
    for id, words in {
        "ask": ("What is the capital of France?", "Paris"),
        "judge": ("What do you think of its clarity?", "branch 0.2", "verdict"),
        "json": ("Tom, 19, studies physics in Oslo.", "city"),
        "chat-2": ("How big is it?",),
        "tree": ("<svg", "Review: Lovely food"),
    }.items():
        page = html(ran[id])
        assert "<script" not in page, id
        for word in words:
            assert word in page, id
    assert len(printed(ran["stream"]).splitlines()) >= 3
    assert "A wonderful evening, thank you!" in printed(ran["batch-value"])
    assert "generated" in printed(ran["status"])
