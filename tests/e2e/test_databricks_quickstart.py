"""A Databricks-like front end runs our notebooks to their ends, and their answers can be read without any widget."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(700)]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def run_there(name, tmp_path):
    """The notebook's code cells after they ran, by id."""
    from harness.databricks import run_like_databricks

    committed = nbformat.read(NOTEBOOKS / name, as_version=4)
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    notebook, dropped = run_like_databricks([cell.source for cell in code], tmp_path)
    ran = {before.id: after for before, after in zip(code, notebook.cells, strict=True)}
    assert dropped == {}, "nothing was sent that such a front end does not show"
    assert all("application/vnd.jupyter.widget-view+json" not in str(cell.outputs) for cell in ran.values())
    return ran


def test_the_quickstart_runs_to_its_end(tmp_path):
    from harness.databricks import html, printed

    ran = run_there("quickstart.ipynb", tmp_path)
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


def test_the_notebook_about_databricks_runs_there(tmp_path):
    from harness.databricks import html, printed

    ran = run_there("databricks.ipynb", tmp_path)
    for id, words in {"ask": ("Paris",), "tree": ("<svg",), "keep": ("Paris", "done")}.items():
        page = html(ran[id])
        assert "<script" not in page, id
        assert all(word in page for word in words), id
    assert "A wonderful evening, thank you!" in printed(ran["table"])
    assert "prompt tokens reused" in printed(ran["cost"])
