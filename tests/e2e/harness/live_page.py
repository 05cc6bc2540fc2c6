"""A live view in a page of its own, without Jupyter: a test is the kernel, and sends it what it likes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lmnb.widgets.page import page as whole_page

_ALONE = """const get = (name) => (name === "snapshot" ? read("lmnb-snapshot") : name === "alone");
const model = { get, on() {}, off() {}, send() {} };"""
_LIVE = """const heard = {}, sent = [];
const get = (name) => (name === "snapshot" ? read("lmnb-snapshot") : false);
const on = (event, callback) => (heard[event] ??= new Set()).add(callback);
const off = (event, callback) => heard[event]?.delete(callback);
const model = { get, on, off, send: (message) => sent.push(message) };
const receive = (message) => { for (const callback of heard["msg:custom"] ?? []) callback(message); };
window.host = { sent, receive };"""


def live_html(view: Literal["run", "tree"], model: dict[str, Any], pool: dict[str, Any] | None = None) -> str:
    """The page of a view whose model is `model`, at delivery 0; `window.host` is its kernel."""
    snapshot = {"protocol": 1, "kind": view, "seq": 0, "model": model, "pool": pool}
    html = whole_page(view, "A live view", json.dumps(snapshot, ensure_ascii=False), "")
    assert html.count(_ALONE) == 1
    return html.replace(_ALONE, _LIVE)


class LivePage:
    """A Playwright page that shows a live view."""

    def __init__(self, page: Any, path: Path, html: str) -> None:
        self.page = page
        self._seq = 0
        path.write_text(html, encoding="utf-8")
        page.goto(path.as_uri())
        page.locator(".lmnb").first.wait_for()

    def tell(self, *events: dict[str, Any], pool: dict[str, Any] | None = None) -> None:
        """Send events in one message, and wait until they are drawn."""
        self._seq += 1
        self.receive({"type": "events", "seq": self._seq, "events": list(events), **({"pool": pool} if pool else {})})

    def receive(self, message: dict[str, Any]) -> None:
        self.page.evaluate(
            "(message) => { host.receive(message);"
            " return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); }",
            message,
        )

    def tops(self, selector: str) -> list[float]:
        """Where the elements begin, in pixels from the page's top."""
        places: Sequence[float] = self.page.locator(selector).evaluate_all(
            "(all) => all.map((el) => el.getBoundingClientRect().top + scrollY)"
        )
        return list(places)
