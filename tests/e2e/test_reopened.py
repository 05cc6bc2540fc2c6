"""A notebook that is saved and opened again, in real front ends: its pictures stand, whatever became of the kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from harness.patience import PATIENCE
from nbclient import NotebookClient
from nbconvert import HTMLExporter

pytestmark = pytest.mark.e2e

SETUP = (
    "%load_ext lmnb\n"
    "import lmnb\n"
    "from lmnb.backends.testing import ScriptedBackend\n"
    "lmnb.set_default_backend(ScriptedBackend({'topic': 'the price is $5 and $6', '': 'one two'}))\n"
)
PROGRAM = (
    "%%lmprog\n"
    "s += user('Name a topic.\\nIn a line.') + assistant(gen('topic'))\n"
    "forks = s.fork(2)\n"
    "forks += lambda i: user(f'Verse {i}.') + assistant(gen('verse'))\n"
    "forks.join()"
)
OTHER = "from IPython.display import HTML, display\ndisplay(HTML('words of another library'))"
TREE = (
    "import sys\n"
    f"sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r})\n"
    "from cache_samples import busy_cache\n"
    "from lmnb.widgets import CacheView\n"
    "CacheView(busy_cache())"
)
OPENED = [("lab", True, True), ("lab", False, True), ("lab", True, False), ("lab", False, False)]
OPENED += [("notebook", True, True), ("notebook", False, True), ("notebook", True, False)]


@pytest.mark.parametrize(("app", "kernel", "trusted"), OPENED)
def test_the_picture_stands_in_a_notebook_that_is_opened_again(open_notebook, app, kernel, trusted):
    page = open_notebook(app, [SETUP, PROGRAM, OTHER])
    page.run(0, 1, 2)
    cell = page.area(1)
    cell.locator(".lmnb-run:not(.lmnb-static)").wait_for()
    assert cell.locator(".lmnb-run:visible").count() == 1, "the live view and its picture must not both show"
    height = cell.bounding_box()["height"]

    page.reopen(kernel=kernel, trusted=trusted)
    cell = page.area(1)
    picture = cell.locator(".lmnb-run.lmnb-static")
    picture.wait_for()
    page.page.wait_for_timeout(1500)  # until the front end knows that there is no model
    page.screenshot(f"reopened-{'fresh' if kernel else 'no'}-kernel{'' if trusted else '-untrusted'}")
    assert cell.locator(".lmnb-run:visible").count() == 1
    shown = cell.inner_text()
    assert "Error" not in shown
    assert "Loading" not in shown
    assert "the price is $5 and $6" in shown
    assert "Name a topic.\nIn a line." in shown
    assert picture.locator(".lmnb-lane").count() == 2
    assert "words of another library" in page.area(2).inner_text()
    if trusted:
        assert abs(cell.bounding_box()["height"] - height) < 60


def test_a_tree_stands_too_and_is_a_list_where_drawings_are_taken_away(open_notebook):
    page = open_notebook("lab", [SETUP, TREE])
    page.run(0, 1)
    page.cell(1).locator("canvas").wait_for()
    assert page.area(1).locator("svg.lmnb-tree-svg:visible").count() == 0
    page.reopen()
    picture = page.area(1)
    picture.locator("svg.lmnb-tree-svg").wait_for()
    page.page.wait_for_timeout(1000)
    assert not picture.locator("pre").is_visible()
    picture.locator("summary").click()
    assert "tokens, 3 hits: You are kind." in picture.locator("pre").inner_text()
    page.reopen(trusted=False)
    picture = page.area(1)
    picture.locator("pre").wait_for()
    page.page.wait_for_timeout(1000)
    page.screenshot("reopened-tree-untrusted")
    assert picture.locator(".lmnb-tree-svg").count() == 0
    assert "tokens, 3 hits: You are kind." in picture.locator("pre").inner_text()
    assert picture.locator(".lmnb-drawing").bounding_box()["height"] == 0  # its words without their places


@pytest.mark.parametrize("state", [True, False], ids=["with widget state", "without"])
def test_nbconvert_shows_each_picture_once_and_needs_no_network(browser, tmp_path, state):
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, PROGRAM, TREE)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=2 * PATIENCE, kernel_name="python3", store_widget_state=state).execute()
    assert ("widgets" in notebook.metadata) == state
    html, _ = HTMLExporter().from_notebook_node(notebook)
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    context = browser.new_context(viewport={"width": 1000, "height": 1400}, offline=True)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.locator(".lmnb-run").wait_for()
    assert page.locator(".lmnb-run:visible").count() == 1
    assert page.locator("svg.lmnb-tree-svg:visible").count() == 1
    assert "the price is $5 and $6" in page.locator(".lmnb-run").inner_text()
    assert "Error" not in page.locator("body").inner_text()
    page.screenshot(path=Path(__file__).parent / "out" / f"nbconvert{'-state' if state else ''}.png")
    context.close()
