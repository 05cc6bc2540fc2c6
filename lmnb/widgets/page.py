"""A view as one HTML page that needs no kernel and no network: the same front-end module, fed from the page itself."""

from __future__ import annotations

from typing import Literal

from lmnb.widgets.escape import markup, script_json
from lmnb.widgets.run_html import STATIC

# The module is an ES module with a default export; inside a page it can only be imported from a blob.
_HOST = """
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const get = (name) => (name === "snapshot" ? read("lmnb-snapshot") : name === "alone");
const model = { get, on() {}, off() {}, send() {} };
const url = URL.createObjectURL(new Blob([read("lmnb-module")], { type: "text/javascript" }));
const widget = (await import(url)).default();
const el = document.getElementById("lmnb-view");
el.replaceChildren();
widget.initialize({ model });
widget.render({ model, el });
"""


def page(view: Literal["run", "tree"], title: str, snapshot: str, fallback: str) -> str:
    """The page. `view` names the front-end module, `snapshot` is what it shows; without scripts, `fallback` stays."""
    module = (STATIC / f"{view}.js").read_text(encoding="utf-8")
    css = (STATIC / f"{view}.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{markup(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><style>{css}body{{margin:0;padding:12px}}</style></head><body>'
        f'<main id="lmnb-view">{fallback}</main>'
        f'<script type="application/json" id="lmnb-snapshot">{script_json(snapshot)}</script>'
        f'<script type="application/json" id="lmnb-module">{script_json(module)}</script>'
        f'<script type="module">{_HOST}</script></body></html>'
    )
