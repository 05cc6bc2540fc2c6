"""What every committed notebook is like: valid, with its code's outputs, good to read where styles are taken away."""

from __future__ import annotations

import base64
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from github_page import sanitized

FOLDER = Path(__file__).parents[2] / "notebooks"
ADVICE = "make notebooks-save"
sys.path.insert(0, str(FOLDER.parent / "scripts"))
from notebook_saved import code_digest  # noqa: E402


def test_they_are_there_and_the_readme_leads_to_each(notebooks: dict[str, Any]) -> None:
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(notebooks/(\w+\.ipynb)\)", readme)) == set(notebooks)
    assert len(notebooks) >= 8


def test_each_is_run_by_tests_of_its_own(notebooks: dict[str, Any]) -> None:
    for name in notebooks:
        tests = Path(__file__).with_name(f"test_{Path(name).stem}.py").read_text("utf-8")
        assert f'run_probed("{name}"' in tests, name


def test_they_are_valid_and_hold_the_outputs_of_their_code(notebooks: dict[str, Any]) -> None:
    for name, notebook in notebooks.items():
        nbformat.validate(notebook)
        assert notebook.metadata.kernelspec.name == "python3", name
        assert set(notebook.metadata) == {"kernelspec", "language_info", "lmnb"}, name
        assert notebook.metadata.language_info == {"name": "python"}, f"{name} tells of one machine's Python"
        assert notebook.metadata.lmnb.outputs_of == code_digest(notebook), f"{name} has changed: {ADVICE}"
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)], f"{name}: {ADVICE}"
        assert sum(bool(cell.outputs) for cell in cells) >= len(cells) / 2, name
        for cell in cells:
            assert "execution" not in cell.metadata, f"{name}, {cell.id}: times of day"
            if cell.source.startswith("%%lmprog") and "(" not in cell.source.split("\n")[0]:
                assert any("image/png" in output.get("data", {}) for output in cell.outputs), f"{name}, {cell.id}"


def test_their_outputs_are_small_and_of_no_machine(notebooks: dict[str, Any]) -> None:
    for name, output in _outputs(notebooks):
        assert output.output_type in ("stream", "display_data", "execute_result"), f"{name} has failed: {ADVICE}"
        data = output.get("data", {})
        assert set(data) <= {"text/plain", "text/html", "image/png"}, name
        assert len(data.get("image/png", "")) < 250_000, name
        text = output.get("text", "") + data.get("text/plain", "") + data.get("text/html", "")
        assert len(text) < 20_000, name
        assert not re.search(r"(?<![\w.])/(?:work|root|home|tmp|usr|opt|Users)/", text), name
        assert platform.node() not in text or len(platform.node()) < 5, name
    for name in notebooks:
        assert (FOLDER / name).stat().st_size < 600_000, name


def test_their_outputs_read_well_without_styles(notebooks: dict[str, Any]) -> None:
    """Pictures are images with their text beside them; what HTML is left says the same without its styles."""
    num_images = 0
    for name, output in _outputs(notebooks):
        data = output.get("data", {})
        if "image/png" in data:
            num_images += 1
            assert data["text/plain"].strip(), name
            assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG"), name
        if "text/html" in data:
            shown = sanitized(data["text/html"])
            assert "<table" in shown, f"{name}: {shown[:200]}"
            assert "{" not in shown, f"{name}: a style sheet is read as text"
    assert num_images >= 30


def _outputs(notebooks: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, notebook in notebooks.items():
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                yield f"{name}, {cell.id}", output


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
