"""A Databricks-like front end runs a notebook to its end, with output that reads well without any widget.

The kernel is the one of `LMNB_TEST_KERNEL_PYTHON`, so that Databricks' own versions can be tested.
"""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.e2e

SETUP = """\
%load_ext lmnb
import lmnb
from lmnb.backends.testing import ScriptedBackend
lmnb.set_default_backend(ScriptedBackend({"topic": "the <b>sea</b> at night", "": "one two three"}, token_delay=0.05))
"""
CELLS = [
    SETUP,
    "%%lmprog\n"
    "s += user('Name a topic.') + assistant(gen('topic'))\n"
    "forks = s.fork(2)\n"
    "forks += lambda i: user(f'Verse {i}.') + assistant(gen('verse'))\n"
    "forks.join()\n"
    "s += user('Good?') + assistant(select('good', choices=['yes', 'no']))\n"
    "s['verse']",
    "%%lmprog --from s -o more\ns += user('Go on.') + assistant(gen('next', max_tokens=2))\nprint(more['next'])",
    "%%lmprog judge(essay)\ns += user(essay) + assistant(gen('verdict'))",
    "print(judge('Cats.')['verdict'])\n%lmnb status",
    "print(type(get_ipython()).__name__)\n%unload_ext lmnb",
]


def text_of(page: str) -> str:
    """What a reader sees of HTML."""
    visible = re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", visible).split())


def test_a_notebook_runs_to_its_end_with_readable_output(tmp_path):
    from harness.databricks import html, printed, run_like_databricks

    notebook, dropped = run_like_databricks(CELLS, tmp_path)
    cell = notebook.cells[1]
    assert dropped == {}, "nothing was sent that such a front end does not show"
    displays = [output for output in cell.outputs if output["output_type"] == "display_data"]
    assert len(displays) == 1
    page = html(cell)
    assert "<script" not in page
    assert "<b>sea</b>" not in page
    text = text_of(page)
    for words in ("Name a topic.", "the &lt;b&gt;sea&lt;/b&gt; at night", "Verse 1.", "one two three", "done"):
        assert words in text
    assert len(page) < 50_000
    assert cell.outputs[-1]["data"]["text/plain"] == "['one two three', 'one two three']"
    assert printed(notebook.cells[2]) == "one two\n"
    assert "Go on." in text_of(html(notebook.cells[2]))
    assert printed(notebook.cells[4]).startswith("one two three\n")
    assert printed(notebook.cells[5]) == "DatabricksShell\n"


def test_a_background_run_is_whole_although_its_view_cannot_follow(tmp_path):
    from harness.databricks import html, printed, run_like_databricks

    cells = [SETUP, "%%lmprog --bg\ns += user('Go.') + assistant(gen('late'))", "s.sync(); print(s['late'])"]
    notebook, dropped = run_like_databricks(cells, tmp_path)
    assert set(dropped) <= {"update_display_data"}
    assert "cell" in text_of(html(notebook.cells[1]))
    assert printed(notebook.cells[2]) == "one two three\n"


def test_text_mode_needs_no_display_at_all(tmp_path):
    from harness.databricks import printed, run_like_databricks

    notebook, _ = run_like_databricks(CELLS[:3], tmp_path, LMNB_VIEW="text")
    shown = printed(notebook.cells[1])
    assert "the <b>sea</b> at night" in shown
    assert shown.count("Name a topic.") == 1
    assert not [output for output in notebook.cells[1].outputs if output["output_type"] == "display_data"]
