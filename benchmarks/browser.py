"""JupyterLab in Chromium, driven by the harness of the end-to-end tests: a notebook opened once a round."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import medians

_ROOT = Path(__file__).resolve().parent.parent


def measure_cells(
    rounds: int, cells: Sequence[str], cases: Mapping[str, int], take: Callable[[Any, int], dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Open a notebook of `cells` in each round, run the first one, and `take(page, cell)` the figures of each case, by
    the number of its first cell. Medians over rounds. SystemExit where there is no Chromium."""
    sys.path.insert(0, str(_ROOT / "tests" / "e2e"))
    from harness.page import NotebookPage
    from harness.server import JupyterServer, find_chromium
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium on this machine (on Debian: apt-get install chromium)")
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = JupyterServer(Path(folder))
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        try:
            for number in range(rounds):
                page = NotebookPage(browser, server, "lab", Path(folder))
                page.open(list(cells))
                page.run(0)
                for name, cell in cases.items():
                    figures = take(page, cell)
                    print(f"  round {number}: {name} {figures}", file=sys.stderr)
                    taken[name].append(figures)
                page.close()
        finally:
            browser.close()
            server.stop()
    return {name: medians(figures) for name, figures in taken.items()}
