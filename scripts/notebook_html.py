"""A run notebook as one HTML file that needs no network: no CDN scripts, no widget manager, no remote fonts."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from typing import Any

from nbconvert import HTMLExporter
from notebook_text import merged

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
# nbconvert's own page, without the scripts that it loads from a CDN: require.js, jQuery, MathJax, Mermaid.
_TEMPLATE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock html_head_js -%}
{%- block html_head_js_mathjax -%}{%- endblock html_head_js_mathjax -%}
{%- block html_head_js_mermaidjs -%}{%- endblock html_head_js_mermaidjs -%}
"""
# Attributes that make a browser fetch something as soon as the page opens.
_FETCHING = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "image": "href",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "track": "src",
    "use": "href",
    "video": "src",
}
_REMOTE = re.compile(r"""^\s*(?:https?:)?//""")
_IN_CSS = re.compile(r"""(?:@import\s+|url\(\s*)["']?((?:https?:)?//[^"')\s]+)""")
_IN_SCRIPT = re.compile(r"""(?:\bimport\b|\bfrom\b|\bfetch\b|importScripts)\s*\(?\s*["'`]((?:https?:)?//[^"'`]+)""")


class _FetchFinder(HTMLParser):
    """Collects what a page would fetch by itself, frames' inner documents included."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note remote addresses of a tag, its style and its inner document."""
        self._inside = tag if tag in ("script", "style") else ""
        for name, value in attrs:
            if not value:
                continue
            if name == _FETCHING.get(tag) and _REMOTE.match(value):
                self.urls.append(value)
            elif name == "style":
                self.urls += _IN_CSS.findall(value)
            elif name == "srcdoc":
                self.urls += fetched_urls(value)

    def handle_endtag(self, tag: str) -> None:
        """Leave a script or style."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Note what a script or a style sheet loads."""
        if self._inside == "style":
            self.urls += _IN_CSS.findall(data)
        elif self._inside == "script":
            self.urls += _IN_SCRIPT.findall(data)


def fetched_urls(html: str) -> list[str]:
    """Remote addresses that a browser fetches when it opens `html` (links to click do not count)."""
    finder = _FetchFinder()
    finder.feed(html)
    finder.close()
    return finder.urls


def still(notebook: Any) -> Any:
    """A copy that does not move: each stream is one output, and each widget output its HTML or text form,
    because live widgets need a CDN."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = merged(cell.outputs)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_MIME, None)
    return notebook


def to_html(notebook: Any, *, title: str) -> str:
    """The notebook as a self-contained page. RuntimeError if it would fetch anything after all."""
    exporter = HTMLExporter(template_name="lab", raw_template=_TEMPLATE, embed_images=True)
    html, _ = exporter.from_notebook_node(still(notebook), resources={"metadata": {"name": title}})
    urls = fetched_urls(html)
    if urls:
        raise RuntimeError(f"the page would fetch {', '.join(sorted(set(urls)))}")
    return str(html)
