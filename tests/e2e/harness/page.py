"""A notebook open in JupyterLab or Notebook 7 in a real browser, driven by the application's own commands.

No menus and no guesses at Jupyter's CSS: cells run by command, and states are read from the notebook's model.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import nbformat
import pytest
from playwright.sync_api import Browser, Page, Request, TimeoutError

from harness.patience import PATIENCE
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
    "widget model not found",  # any widget in a notebook that is opened again
)

_SCRIPT = """
window.e2e = {
  panel() { return window.jupyterapp?.shell?.currentWidget; },
  cell(i) { return this.panel().content.widgets[i]; },
  talk: [],  // what the page and the kernel said last
  listen(kernel) {
    if (!kernel || kernel === this.heard) return;
    this.heard = kernel;
    const start = performance.now();
    kernel.anyMessage.connect((_, { msg, direction }) => {
      const seconds = ((performance.now() - start) / 1000).toFixed(3);
      const what = [msg.channel, msg.header.msg_type, msg.content.execution_state].filter(Boolean).join(' ');
      const why = msg.parent_header?.msg_type ? ` (to ${msg.parent_header.msg_type})` : '';
      this.talk.push(`${seconds} s ${direction} ${what}${why}`);
      if (this.talk.length > 40) this.talk.shift();
    });
  },
  ready() {
    const context = this.panel()?.sessionContext;
    const kernel = context?.session?.kernel;
    this.listen(kernel);
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
  told() {
    const kernel = this.panel()?.sessionContext?.session?.kernel;
    const cells = (this.panel()?.content?.widgets ?? []).map(({ model }) => ({
      source: model.sharedModel.source, state: model.executionState, count: model.executionCount,
      outputs: model.outputs.toJSON(),
    }));
    return { kernel: kernel ? `${kernel.status}, ${kernel.connectionStatus}` : 'none', cells, talk: this.talk };
  },
};
"""


class NotebookPage:
    """One notebook in one browser context of its own."""

    def __init__(self, browser: Browser, server: JupyterServer, app: App, shots: Path, scale: float = 1) -> None:
        self.server = server
        self.app = app
        self.shots = shots
        self.external: list[str] = []
        self.errors: list[str] = []
        self._context = browser.new_context(viewport={"width": 1280, "height": 1100}, device_scale_factor=scale)
        self._context.set_default_timeout(PATIENCE * 1000)
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
        self._go()
        self._wait_ready()

    def reload(self) -> None:
        """Load the page again, as after an accidental F5; the kernel goes on."""
        self.page.reload()
        self._wait_ready()

    def reopen(self, *, kernel: bool = True, trusted: bool = True) -> None:
        """Save, end the kernel, and open the notebook again as on another day: with a fresh kernel or with none, and as
        the user's own or as one that somebody else has sent."""
        self.save()
        self.page.close()
        self.server.stop_kernels()
        path = self.server.root / self.path
        notebook = nbformat.read(path, as_version=4)
        notebook.metadata["opened_again"] = next(_numbers)  # the signature fits no more
        nbformat.write(notebook, path)
        if trusted:
            self.server.trust(path)
        self.page = self._new_page()
        if not kernel:  # the server knows none
            self.page.route("**/api/kernelspecs*", lambda route: route.fulfill(json={"default": "", "kernelspecs": {}}))
        self._go()
        if kernel:
            self._wait_ready()
        else:
            self.page.wait_for_function("() => !!e2e.panel()?.content?.widgets?.length")
            self.page.get_by_role("dialog").get_by_role("button", name="No Kernel").click()
            assert self.page.evaluate("() => !e2e.panel().sessionContext.session")

    def save(self) -> None:
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def run(self, *indices: int, wait: bool = True) -> None:
        """Run cells by index; waits for each to end unless told not to."""
        for index in indices:
            self.page.evaluate("i => e2e.run(i)", index)
            if wait:
                self.wait(index)

    def wait(self, index: int) -> None:
        """Wait until the cell has ended."""
        try:
            self.page.wait_for_function("i => e2e.idle(i)", arg=index, polling=20)
        except TimeoutError:
            pytest.fail(f"cell {index} did not end within {PATIENCE} s")

    def describe(self) -> str:
        """The notebook as it is now: each cell and its outputs, and what the page and the kernel said last."""
        told = self.page.evaluate("() => e2e.told()")
        lines = [f"{self.path} in {self.app}; the kernel: {told['kernel']}; the server: {self.server.kernels()}"]
        for index, cell in enumerate(told["cells"]):
            lines.append(f"cell {index}: {cell['state']}, [{cell['count']}]")
            lines += [f"    {line}" for line in cell["source"].splitlines()]
            lines += [f"  -> {_shorten(json.dumps(output, ensure_ascii=False))}" for output in cell["outputs"]]
        return "\n".join([*lines, "last messages:", *(f"    {line}" for line in told["talk"]), *self.errors])

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

    def area(self, index: int) -> Any:
        """A locator of the cell's output area: live views, the pictures that they hide, and all else."""
        return self.page.locator(self._mark(index))

    def cell(self, index: int) -> Any:
        """A locator of the cell's live view; where there is none, of its output area."""
        area = self._mark(index)
        live = f"{area} > .jp-OutputArea-child:has(.lmnb-still) + .jp-OutputArea-child"
        return self.page.locator(f"{area}:not(:has(.lmnb-still)), {live}")

    def screenshot(self, name: str) -> Path:
        self.shots.mkdir(exist_ok=True)
        path = self.shots / f"{name}-{self.app}.png"
        self.page.screenshot(path=path)
        return path

    def close(self) -> None:
        self._context.close()
        self.server.stop_kernels_soon()

    def _new_page(self) -> Page:
        page = self._context.new_page()
        page.on("pageerror", lambda error: self._note_error("page", str(error)))
        page.on("console", lambda message: message.type == "error" and self._note_error("console", message.text))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.accept()))
        return page

    def _mark(self, index: int) -> str:
        """A selector of the cell's output area."""
        marker = f"e2e-cell-{index}"
        self.page.evaluate("([i, m]) => e2e.cell(i).outputArea.node.classList.add(m)", [index, marker])
        return f".{marker}"

    def _go(self) -> None:
        place = f"lab/workspaces/{self.path.removesuffix('.ipynb')}/tree" if self.app == "lab" else "notebooks"
        self.page.goto(f"{self.server.url}/{place}/{self.path}?token={self.server.token}")

    def _wait_ready(self) -> None:
        self.page.wait_for_function("() => e2e.ready()", polling=50)

    def _note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self.external.append(request.url)

    def _note_error(self, where: str, text: str) -> None:
        if not any(noise in text for noise in _NOISE):
            self.errors.append(f"{where}: {text}")


def _shorten(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
