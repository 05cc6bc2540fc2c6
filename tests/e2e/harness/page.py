"""A notebook open in JupyterLab or Notebook 7 in a real browser, driven by the application's own commands.

No menus and no guesses at Jupyter's CSS: cells run by command, and states are read from the notebook's model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import nbformat
from playwright.sync_api import Browser, Page, Request

from harness.server import KERNEL, JupyterServer

App = Literal["lab", "notebook"]
_numbers = itertools.count(1)

# Errors of the browser and of Jupyter's own, which say nothing of ours.
_NOISE = (
    "favicon",
    "Failed to load resource: the server responded with a status of 404",
    "ResizeObserver loop",
    "Cannot read properties of undefined (reading 'schema')",  # Notebook 7.6 opening any notebook
    "Command 'filebrowser:open-path' not registered.",  # the same, on a server that also serves Lab
)

_SCRIPT = """
window.e2e = {
  panel() { return window.jupyterapp?.shell?.currentWidget; },
  cell(i) { return this.panel().content.widgets[i]; },
  ready() {
    const context = this.panel()?.sessionContext;
    const kernel = context?.session?.kernel;
    return !!(context?.isReady && kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle'
              && this.panel().content.widgets.length);
  },
  run(i) {
    this.panel().content.activeCellIndex = i;
    this.panel().content.deselectAll();
    window.jupyterapp.commands.execute('notebook:run-cell');
  },
  idle(i) {
    const model = this.cell(i).model;
    return model.executionState === 'idle' && model.executionCount !== null;
  },
  outputs(i) { return this.cell(i).model.outputs.toJSON(); },
};
"""


class NotebookPage:
    """One notebook in one browser context of its own."""

    def __init__(self, browser: Browser, server: JupyterServer, app: App, shots: Path) -> None:
        self.server = server
        self.app = app
        self.shots = shots
        self.external: list[str] = []
        self.errors: list[str] = []
        self._context = browser.new_context(viewport={"width": 1280, "height": 1100})
        self._context.on("request", self._note_request)
        self._context.add_init_script(_SCRIPT)
        self.page: Page = self._new_page()
        self.path = ""

    def open(self, cells: Sequence[str]) -> None:
        """Write a notebook with these code cells, open it and wait for its kernel."""
        number = next(_numbers)
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": KERNEL, "display_name": KERNEL, "language": "python"}},
        )
        self.path = f"e2e{number}.ipynb"
        nbformat.write(notebook, self.server.root / self.path)
        place = f"lab/workspaces/e2e{number}/tree" if self.app == "lab" else "notebooks"
        self.page.goto(f"{self.server.url}/{place}/{self.path}?token={self.server.token}")
        self._wait_ready()

    def reload(self) -> None:
        """Load the page again, as after an accidental F5; the kernel goes on."""
        self.page.reload()
        self._wait_ready()

    def save(self) -> None:
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def run(self, *indices: int, wait: bool = True, timeout: float = 15.0) -> None:
        """Run cells by index; waits for each to end unless told not to."""
        for index in indices:
            self.page.evaluate("i => e2e.run(i)", index)
            if wait:
                self.wait(index, timeout)

    def wait(self, index: int, timeout: float = 15.0) -> None:
        """Wait until the cell has ended."""
        self.page.wait_for_function("i => e2e.idle(i)", arg=index, timeout=timeout * 1000, polling=20)

    def interrupt(self) -> None:
        """The application's own interrupt, as the stop button does."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:interrupt-kernel') }")

    def outputs(self, index: int) -> list[dict[str, Any]]:
        """The cell's outputs as the notebook file would hold them."""
        found: list[dict[str, Any]] = self.page.evaluate("i => e2e.outputs(i)", index)
        return found

    def stream(self, index: int) -> str:
        """What the cell printed."""
        return "".join("".join(o["text"]) for o in self.outputs(index) if o["output_type"] == "stream")

    def error(self, index: int) -> str:
        """The name of the error that the cell ended with, or ""."""
        return next((str(o["ename"]) for o in self.outputs(index) if o["output_type"] == "error"), "")

    def cell(self, index: int) -> Any:
        """A locator of the cell's output area."""
        marker = f"e2e-cell-{index}"
        self.page.evaluate("([i, m]) => e2e.cell(i).outputArea.node.classList.add(m)", [index, marker])
        return self.page.locator(f".{marker}")

    def screenshot(self, name: str) -> Path:
        self.shots.mkdir(exist_ok=True)
        path = self.shots / f"{name}-{self.app}.png"
        self.page.screenshot(path=path)
        return path

    def close(self) -> None:
        self._context.close()
        self.server.stop_kernels()

    def _new_page(self) -> Page:
        page = self._context.new_page()
        page.on("pageerror", lambda error: self._note_error("page", str(error)))
        page.on("console", lambda message: message.type == "error" and self._note_error("console", message.text))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.accept()))
        return page

    def _wait_ready(self) -> None:
        self.page.wait_for_function("() => e2e.ready()", timeout=45_000, polling=50)

    def _note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self.external.append(request.url)

    def _note_error(self, where: str, text: str) -> None:
        if not any(noise in text for noise in _NOISE):
            self.errors.append(f"{where}: {text}")
