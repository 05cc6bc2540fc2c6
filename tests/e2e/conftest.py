"""A Jupyter server and a browser for the whole session; a notebook page for each test.

A test that touched the network, or left an error on the page, fails when it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `harness`, which is no test

if TYPE_CHECKING:
    from harness.page import App, NotebookPage

SHOTS = Path(__file__).parent / "out"
PAGES = pytest.StashKey[list["NotebookPage"]]()


@pytest.fixture(scope="module", autouse=True)
def no_leaked_connections() -> None:
    """Not asked here: kernels and their clients end beside the next test, and nothing of ours speaks to them."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test tells what its notebooks looked like."""
    report = yield
    if report.when == "call" and report.failed:
        for page in item.stash.get(PAGES, []):
            try:
                page.screenshot(f"failed-{item.name.replace('/', '-')}")
                told = page.describe()
            except Exception as error:  # a page that crashed, a server that ended
                told = f"{page.path} could not be described: {error}"
            report.sections.append(("the notebook", told))
    return report


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("jupyterlab")
    from harness.server import JupyterServer

    server = JupyterServer(tmp_path_factory.mktemp("jupyter"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    from harness.server import find_chromium

    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_notebook(
    browser: Any, jupyter: Any, request: pytest.FixtureRequest
) -> Iterator[Callable[[App, Sequence[str]], NotebookPage]]:
    """`open_notebook("lab" | "notebook", cells)`: the notebook, open, with its kernel idle."""
    from harness.page import NotebookPage

    pages: list[NotebookPage] = []
    request.node.stash[PAGES] = pages

    def open_(app: App, cells: Sequence[str]) -> NotebookPage:
        page = NotebookPage(browser, jupyter, app, SHOTS)
        pages.append(page)
        page.open(cells)
        return page

    yield open_
    for page in pages:
        page.close()
    for page in pages:
        assert page.external == [], "a request left this machine"
        assert page.errors == [], "the page reported errors"
