"""Runs a notebook as `make notebooks` does, with probes: cells that write what they find in the kernel to a file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 600  # a whole notebook takes half a minute on two idle cores


class Ran(NamedTuple):
    """What a run left: `found` by probe, and what the runner printed and wrote."""

    found: dict[str, Any]
    printed: str
    html: str


RunProbed = Callable[..., Ran]


def read(name: str) -> Any:
    """The committed notebook."""
    return nbformat.read(ROOT / "notebooks" / name, as_version=4)


def _names(setup: str) -> set[str]:
    """What the code defines for all that runs behind it."""
    found: dict[str, Any] = {}
    exec(setup, found)
    return found.keys() - {"__builtins__"}


@pytest.fixture(scope="session")
def notebooks() -> dict[str, Any]:
    """All committed notebooks, by file name."""
    return {path.name: read(path.name) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


@pytest.fixture(scope="session")
def run_probed(tmp_path_factory: pytest.TempPathFactory) -> RunProbed:
    """`run_probed(name, {cell id: expression}, setup)`: run it; behind each named cell the expression's value is
    noted, as JSON. `setup` is code that runs behind the first code cell and defines what expressions need; a notebook
    that names any of it itself is refused, as it may lack it elsewhere."""

    def run(name: str, probes: Mapping[str, str], setup: str = "") -> Ran:
        folder = tmp_path_factory.mktemp(Path(name).stem)
        notebook = read(name)
        assert set(probes) <= {cell.id for cell in notebook.cells}
        written = {word for cell in notebook.cells for word in re.findall(r"\w+", cell.source)}
        assert not _names(setup) & written
        cells = []
        for cell in notebook.cells:
            cells.append(cell)
            if cell.cell_type == "code" and setup:
                cells.append(nbformat.v4.new_code_cell(setup))
                setup = ""
            if cell.id in probes:
                note = f"__import__('json').dump(({probes[cell.id]}), open({cell.id + '.json'!r}, 'w'))"
                cells.append(nbformat.v4.new_code_cell(note))
        notebook.cells = cells
        nbformat.write(notebook, folder / name)
        command = [sys.executable, str(ROOT / "scripts/run_notebook.py"), str(folder / name), "--out", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        found = {id: json.loads((folder / f"{id}.json").read_text()) for id in probes}
        return Ran(found, done.stdout, (folder / name).with_suffix(".html").read_text())

    return run
