"""What `make notebooks-save` keeps of a run notebook."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from notebook_saved import Browser, chromium, code_digest, saved

PICTURE = '<style>.lmnb{color:red}</style><div class="lmnb-still x"><div class="lmnb lmnb-static">hello</div></div>'
WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/html": ""}


def ran() -> Any:
    cell = new_code_cell("%%lmprog", execution_count=7, metadata={"execution": {"iopub.execute_input": "today"}})
    cell.outputs = [
        new_output("stream", name="stdout", text="1 of 2\r"),
        new_output("stream", name="stdout", text="2 of 2\n"),
        new_output("display_data", {"text/html": PICTURE, "text/plain": "hello"}),
        new_output("display_data", WIDGET),
        new_output("display_data", {"text/plain": "", "text/html": ""}),
        new_output("execute_result", {"text/html": "<table></table>", "text/plain": "rows"}, execution_count=7),
    ]
    metadata = {"kernelspec": {"name": "python3", "display_name": "mine"}, "widgets": {"state": {}}}
    return new_notebook(cells=[new_markdown_cell("# Title"), cell], metadata=metadata)


def test_pictures_become_images_with_their_text_and_what_says_nothing_goes() -> None:
    notebook, committed = ran(), new_notebook(metadata={"language_info": {"name": "python"}})
    painted: list[str] = []
    kept = saved(notebook, committed, lambda html: painted.append(html) or b"png")  # type: ignore[func-returns-value]
    nbformat.validate(kept)
    assert painted == [PICTURE]
    assert kept.metadata == {"language_info": {"name": "python"}, "lmnb": {"outputs_of": code_digest(notebook)}}
    stream, picture, table = kept.cells[1].outputs
    assert stream.text == "2 of 2\n"
    assert picture.data == {"text/plain": "hello", "image/png": base64.b64encode(b"png").decode() + "\n"}
    assert table.data == {"text/html": "<table></table>", "text/plain": "rows"}
    assert kept.cells[1].execution_count == table.execution_count == 1
    assert kept.cells[1].metadata == {}


def test_the_digest_names_the_code_and_not_the_prose() -> None:
    first, second = ran(), ran()
    second.cells[0].source = "# Another title"
    assert code_digest(first) == code_digest(second)
    second.cells[1].source += "\ns += 'x'"
    assert code_digest(first) != code_digest(second)


@pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
def test_a_browser_paints_a_picture_and_fades_a_long_transcript() -> None:
    from PIL import Image

    lines = "<br>".join(f"line {number}" for number in range(400))
    with Browser() as browser:
        short = browser.paint('<div class="lmnb lmnb-static"><div class="lmnb-body">short</div></div>')
        long = browser.paint(f'<div class="lmnb lmnb-static"><div class="lmnb-body">{lines}</div></div>')
    sizes = [Image.open(io.BytesIO(data)).size for data in (short, long)]
    assert sizes[0][0] == sizes[1][0]
    assert 20 < sizes[0][1] < sizes[1][1] < 1200
