"""scripts/run_notebook.py: what `make demo` shows, and what it says when a cell fails."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

WIDGET = """
import ipywidgets
from IPython.display import display
display(ipywidgets.IntSlider(value=7))
"""
STREAMED = """
import sys, time
for n in range(3):
    print(f"\\rstep {n}", end="", flush=True)
    time.sleep(0.25)
"""


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Run:
    def run_cells(*cells: str) -> subprocess.CompletedProcess[str]:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbformat.write(notebook, tmp_path / "sample.ipynb")
        command = [sys.executable, root / "scripts/run_notebook.py", tmp_path / "sample.ipynb", "--out", tmp_path]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return run_cells


def test_prints_answers_and_writes_an_offline_page(run: Run, tmp_path: Path) -> None:
    done = run("# a comment\nprint('hello')\n'an answer'", WIDGET, STREAMED)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no warning of a kernel that was not ended
    assert "[1/3] print('hello') (" in done.stdout
    assert "    hello\n" in done.stdout
    assert "    'an answer'\n" in done.stdout
    assert "    IntSlider(value=7)" in done.stdout
    assert "    step 2\n" in done.stdout
    assert "step 1" not in done.stdout  # redrawn since
    assert str(tmp_path / "sample.html") in done.stdout
    html = (tmp_path / "sample.html").read_text()
    assert "hello" in html
    assert "IntSlider(value=7)" in html
    assert re.findall(r"step \d", html) == ["step 2"]
    assert "require.min.js" not in html
    assert "MathJax" not in html


def test_a_failing_cell_ends_it_with_a_clear_message(run: Run, tmp_path: Path) -> None:
    done = run("print('before')", "x = 1\nx / 0", "print('after')")
    assert done.returncode == 1
    assert "A cell failed:\n    x = 1\n    x / 0\n" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "\x1b" not in done.stderr
    assert "after" not in done.stdout
    assert "ZeroDivisionError" in (tmp_path / "sample.html").read_text()


def test_a_dead_kernel_is_named(run: Run) -> None:
    done = run("import os\nos._exit(3)")
    assert done.returncode == 1
    assert "kernel died" in done.stderr


def test_finds_what_a_page_would_fetch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "scripts"))
    from notebook_html import fetched_urls

    assert fetched_urls('<a href="https://a.example">x</a><img src="data:image/png;base64,AA">') == []
    assert fetched_urls("<pre>&lt;script src='https://a.example'&gt;</pre>") == []
    for page in (
        '<script src="https://a.example/x.js"></script>',
        '<link rel="stylesheet" href="//a.example/x.css">',
        "<style>@import 'https://a.example/x.css';</style>",
        '<p style="background: url(https://a.example/x.png)">',
        '<script type="module">import x from "https://a.example/x.js"</script>',
        '<iframe srcdoc="&lt;img src=&quot;https://a.example/x.png&quot;&gt;"></iframe>',
    ):
        assert len(fetched_urls(page)) == 1, page
