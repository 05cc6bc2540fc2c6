"""A run notebook as it is committed: small, of no machine, and good to read where no style sheet is let in.

GitHub, and JupyterLab for a notebook that somebody else has sent, take styles and drawings out of HTML. So each of
lmnb's own pictures becomes an image of itself, as a browser paints it, with its text beside it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from notebook_html import still

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))  # its harness finds the browser

PICTURE = re.compile(r'class="[^"]*\blmnb-(?:static|lens)\b')  # of a run, a cache tree, a comparison, tokens
WIDTH = 860  # CSS pixels: about as wide as GitHub's column
SCALE = 1.5
COLOURS = 256
TALLEST = 720  # CSS pixels of a transcript; what is cut off fades, and the text beside the image has it
_PAGE = """<!doctype html><meta charset="utf-8"><style>
body{{margin:0;padding:1px;width:{width}px;background:#fff;font:14px/1.5 system-ui,sans-serif}}
.lmnb *{{max-height:none!important}} .lmnb-value{{-webkit-line-clamp:none!important}}
.lmnb-static>details:has(+pre){{display:none}}
.lmnb>.cut{{max-height:{tallest}px!important;overflow:hidden!important}}
.lmnb>.cut{{mask-image:linear-gradient(#000 80%,transparent)}}
</style><div id="picture">{html}</div>"""

_CUT = """tallest => { for (const body of document.querySelectorAll(".lmnb > .lmnb-body"))
    body.classList.toggle("cut", body.scrollHeight > 1.5 * tallest) }"""

Painter = Callable[[str], bytes]


def saved(notebook: Any, committed: Any, paint: Painter) -> Any:
    """A copy of the run `notebook` for the repository, with the metadata of the `committed` one."""
    notebook = still(notebook)
    notebook.metadata = {**committed.metadata, "lmnb": {"outputs_of": code_digest(notebook)}}
    number = 0
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        number += 1
        cell.execution_count = number
        cell.outputs = [_small(output, paint) for output in cell.outputs if not _is_empty(output)]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
    return notebook


def code_digest(notebook: Any) -> str:
    """Names the code of a notebook: outputs that were saved with another name are not its own."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()[:16]


def _is_empty(output: Any) -> bool:
    """The place of a live view, which holds nothing else; and a display that has been taken back."""
    return "data" in output and not any(output.data.values())


def _small(output: Any, paint: Painter) -> Any:
    html = output.get("data", {}).get("text/html", "")
    if PICTURE.search(html):
        del output.data["text/html"]
        output.data["image/png"] = base64.b64encode(paint(html)).decode("ascii") + "\n"
        output.metadata["image/png"] = {"width": WIDTH}
    return output


def chromium() -> str | None:
    """The browser on this machine, or None."""
    from harness.server import find_chromium

    path: str | None = find_chromium()
    return path


class Browser(AbstractContextManager["Browser"]):
    """Paints HTML in Chromium, in light colours."""

    def __enter__(self) -> Browser:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        self._page = self._browser.new_page(
            viewport={"width": WIDTH + 40, "height": 400}, device_scale_factor=SCALE, color_scheme="light"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()
        self._playwright.stop()

    def paint(self, html: str) -> bytes:
        """The HTML as a PNG of few colours."""
        self._page.set_content(_PAGE.format(width=WIDTH, tallest=TALLEST, html=html))
        self._page.evaluate(_CUT, TALLEST)
        return few_colours(self._page.locator("#picture").screenshot())


def few_colours(png: bytes) -> bytes:
    """The same picture in a third of its size."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    few = picture.quantize(COLOURS, kmeans=3, dither=Image.Dither.NONE)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return out.getvalue()
