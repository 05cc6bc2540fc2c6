"""A notebook client that is as limited as Databricks' front end: what its documentation says it does not do.

No widget traffic, no `clear_output`, and an update of a display reaches it only from the cell that made the display.
`dropped` counts what was lost, so that a test can show that the limits are in force.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from harness.patience import PATIENCE
from harness.server import KERNEL, isolated_environment

_STARTUP = 'type(get_ipython()).__name__ = "DatabricksShell"\n'


class DatabricksLike(NotebookClient):
    """Runs a notebook to its end. Raises CellExecutionError as any client does."""

    def __init__(self, notebook: Any, **kwargs: Any) -> None:
        super().__init__(notebook, **kwargs)
        self.dropped: Counter[str] = Counter()
        self._born: dict[str, int] = {}  # display id -> the cell that made it

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Drop what Databricks does not show; leave the rest to nbclient."""
        kind = msg["msg_type"]
        display_id = (msg["content"].get("transient") or {}).get("display_id")
        if kind == "display_data" and display_id is not None:
            self._born[display_id] = cell_index
        strange = kind == "update_display_data" and self._born.get(display_id) != cell_index
        if kind == "clear_output" or kind.startswith("comm") or strange:
            self.dropped[kind] += 1
            return None
        return super().process_message(msg, cell, cell_index)


def run_like_databricks(cells: list[str], folder: Path, **kernel_env: str) -> tuple[Any, Counter[str]]:
    """Run cells on the kernel under test as Databricks would. Returns the notebook and what was dropped."""
    environment = isolated_environment(folder, DATABRICKS_RUNTIME_VERSION="16.4", **kernel_env)
    startup = Path(environment["IPYTHONDIR"]) / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "00-databricks.py").write_text(_STARTUP)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    specs = KernelSpecManager(kernel_dirs=[str(Path(environment["JUPYTER_DATA_DIR"]) / "kernels")])
    manager = AsyncKernelManager(kernel_name=KERNEL, kernel_spec_manager=specs)
    client = DatabricksLike(notebook, km=manager, timeout=2 * PATIENCE, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return notebook, client.dropped


def html(cell: Any) -> str:
    """The HTML outputs of a cell."""
    return "\n".join(output["data"].get("text/html", "") for output in cell.outputs if "data" in output)


def printed(cell: Any) -> str:
    """What a cell printed, in however many pieces it came."""
    return "".join(output["text"] for output in cell.outputs if output["output_type"] == "stream")
