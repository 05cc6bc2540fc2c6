"""Runs notebooks from top to bottom, prints what they answer, and writes each as one offline HTML file.

    scripts/run_notebook.py notebooks/quickstart.ipynb [--out out]
    scripts/run_notebook.py notebooks/quickstart.ipynb --save    # and keeps the outputs in the notebook itself

Exit code 1 if a cell fails; the HTML then shows the notebook up to that cell.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

# With PYTHONSAFEPATH a script's own folder is not on its path.
sys.path.insert(0, str(Path(__file__).parent))
from notebook_html import to_html
from notebook_saved import Browser, chromium, saved
from notebook_text import answers, first_line, indent, plain


class Progress:
    """Prints one line when a cell starts and ends, and the cell's outputs below it."""

    def __init__(self, notebook: Any) -> None:
        indices = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code" and cell.source.strip()]
        self._number = {index: number for number, index in enumerate(indices, start=1)}
        self._started = 0.0

    @property
    def num_cells(self) -> int:
        """How many cells there are to run."""
        return len(self._number)

    def label(self, cell_index: int) -> str:
        """A cell's place, `3/12`."""
        return f"{self._number.get(cell_index, '?')}/{self.num_cells}"

    def on_execute(self, cell: Any, cell_index: int) -> None:
        """nbclient's hook: a code cell is about to run."""
        self._started = time.perf_counter()
        print(f"[{self.label(cell_index)}] {first_line(cell.source)} ", end="", flush=True)

    def on_executed(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        """nbclient's hook: a code cell has run, well or not."""
        failed = execute_reply["content"]["status"] == "error"
        print(f"({'failed, ' if failed else ''}{time.perf_counter() - self._started:.1f} s)", flush=True)
        for text in answers(cell.outputs):
            print(indent(text), flush=True)


def describe_failure(error: Exception, notebook: Any) -> str:
    """What went wrong, for a person at a terminal."""
    if isinstance(error, CellTimeoutError):
        return f"A cell took too long: {plain(str(error)).strip().splitlines()[0]}"
    if isinstance(error, DeadKernelError):
        return "The kernel died while the notebook ran (often: out of memory)."
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                trace = plain("\n".join(output.traceback)).strip()
                return f"A cell failed:\n{indent(cell.source)}\n\nwith\n{indent(trace)}"
    return f"A cell failed: {plain(str(error))}"


def cleared(notebook: Any) -> Any:
    """A copy without outputs: what a run up to a failure leaves must be its own."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def run_notebook(path: Path, out_dir: Path, timeout_s: int, save: bool = False) -> bool:
    """Run one notebook; True if every cell did. With `save` it then holds its outputs."""
    committed = nbformat.read(path, as_version=4)
    notebook = cleared(committed)
    progress = Progress(notebook)
    print(f"Running {path} ({progress.num_cells} cells)", flush=True)
    started = time.perf_counter()
    failure = ""
    with tempfile.TemporaryDirectory() as sockets:
        client = NotebookClient(
            notebook,
            timeout=timeout_s,
            kernel_name="python3",  # this environment's, whatever the file says
            config=Config(ConnectionFileMixin={"transport": "ipc", "ip": f"{sockets}/kernel"}),  # opens no port
            resources={"metadata": {"path": str(path.parent)}},
            on_cell_execute=progress.on_execute,
            on_cell_executed=progress.on_executed,
        )
        try:
            client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            failure = describe_failure(error, notebook)
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / f"{path.stem}.html"
    target.write_text(to_html(notebook, title=path.stem), encoding="utf-8")
    if failure:
        print(f"\n{failure}\n\nThe notebook up to there: {target}", file=sys.stderr)
        return False
    if save:
        with Browser() as browser:
            nbformat.write(saved(notebook, committed, browser.paint), path)
    print(f"\nDone in {time.perf_counter() - started:.0f} s. The notebook with its answers: {target}")
    return True


def main() -> int:
    """Run every notebook that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the HTML files (default: out)")
    parser.add_argument("--save", action="store_true", help="keep the outputs in the notebooks (needs Chromium)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a cell may take (default: 600)")
    arguments = parser.parse_args()
    # A kernel installed for the whole user must not win over this environment's.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    missing = [path for path in arguments.notebooks if not path.is_file()]
    if missing:
        parser.error(f"no such notebook: {', '.join(map(str, missing))}")
    if arguments.save and chromium() is None:
        parser.error("--save needs Chromium (on Debian: apt-get install chromium)")
    out, timeout, save = arguments.out, arguments.timeout, arguments.save
    succeeded = [run_notebook(path, out, timeout, save) for path in arguments.notebooks]
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
