"""What every committed notebook is like: valid, without outputs, with links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).parents[2] / "notebooks"


def test_they_are_there_and_the_readme_leads_to_each(notebooks: dict[str, Any]) -> None:
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(notebooks/(\w+\.ipynb)\)", readme)) == set(notebooks)
    assert len(notebooks) >= 8


def test_they_are_valid_and_hold_no_outputs(notebooks: dict[str, Any]) -> None:
    for name, notebook in notebooks.items():
        nbformat.validate(notebook)
        assert notebook.metadata.kernelspec.name == "python3", name
        assert "widgets" not in notebook.metadata, name
        for cell in notebook.cells:
            if cell.cell_type == "code":
                assert cell.outputs == [], f"{name}: clear the outputs before committing"
                assert cell.execution_count is None, f"{name}: clear the outputs before committing"


def test_each_code_cell_is_explained_above(notebooks: dict[str, Any]) -> None:
    for name, notebook in notebooks.items():
        assert notebook.cells[0].source.startswith("# "), f"{name} begins with its title"
        sections = [cell for cell in notebook.cells if cell.source.startswith("## ")]
        assert len(sections) >= 5, name
        assert notebook.cells[-1].source.strip(), name
        assert all(cell.source.strip() for cell in notebook.cells), f"{name} has an empty cell"


def test_links_to_files_lead_somewhere(notebooks: dict[str, Any]) -> None:
    for name, notebook in notebooks.items():
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (FOLDER / target).exists(), f"{name} links to {target}"
