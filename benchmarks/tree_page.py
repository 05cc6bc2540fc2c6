"""What the cache tree's own scripts take in a page, frame by frame: a thousand events a second come, in 20 messages.

No Jupyter and no kernel: a page with the front-end module in Chromium, which gets messages that were made before. Times
are those of the page's animation callbacks, all of one frame together: what is left of 20 ms is the browser's.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.busy_tree import BusyTree
from benchmarks.harness import medians

_ROOT = Path(__file__).resolve().parent.parent
_EVENTS = 50  # a message
_INTERVAL = 50  # milliseconds between messages

_WATCH = """
() => {
  const ask = window.requestAnimationFrame.bind(window);
  window.spent = new Map();
  window.requestAnimationFrame = (draw) => ask((now) => {
    const began = performance.now();
    draw(now);
    window.spent.set(now, (window.spent.get(now) ?? 0) + performance.now() - began);
  });
}
"""
_RUN = """
([messages, interval]) => new Promise((done) => {
  window.spent.clear();
  const received = [];
  let place = 0;
  const timer = setInterval(() => {
    if (place === messages.length) {
      clearInterval(timer);
      done({ frames: [...window.spent.values()], received });
      return;
    }
    const began = performance.now();
    host.receive(messages[place++]);
    received.push(performance.now() - began);
  }, interval);
})
"""


def measure_page(sizes: tuple[int, ...], rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds of script a frame and a message, by the tree's size; medians over rounds."""
    sys.path.insert(0, str(_ROOT / "tests" / "e2e"))
    from harness.server import find_chromium
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium on this machine (on Debian: apt-get install chromium)")
    report = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for size in sizes:
            html, messages = _story(size, seconds)
            path = Path(folder) / "tree.html"
            path.write_text(html, encoding="utf-8")
            taken = []
            for _ in range(rounds):
                page = browser.new_page(viewport={"width": 1000, "height": 900})
                page.add_init_script(f"({_WATCH.strip()})()")
                taken.append(_one(page, path, messages))
                page.close()
            report[f"{size}_nodes"] = medians(taken)
        browser.close()
    return report


def _one(page: Any, path: Path, messages: list[dict[str, Any]]) -> dict[str, float]:
    page.goto(path.as_uri())
    page.locator("canvas").wait_for()
    page.wait_for_timeout(500)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")
    before = thread_seconds(devtools)
    told = page.evaluate(_RUN, [messages, _INTERVAL])
    busy = thread_seconds(devtools) - before
    frames, received = sorted(told["frames"]), sorted(told["received"])
    seconds = len(messages) * _INTERVAL / 1000
    return {
        "frames": len(frames),
        "script_ms_a_frame": round(sum(frames) / len(frames), 2),
        "script_ms_a_frame_median": round(frames[len(frames) // 2], 2),
        "script_ms_a_frame_p95": round(frames[int(0.95 * len(frames))], 2),
        "receive_ms_median": round(received[len(received) // 2], 2),
        "script_ms_a_second": round((sum(frames) + sum(received)) / seconds, 1),
        "processor_ms_a_frame": round(1000 * busy / len(frames), 2),  # of the page's main thread, painting included
    }


def thread_seconds(devtools: Any) -> float:
    """Processor time that the page's main thread has had."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "ThreadTime"))


def _story(size: int, seconds: float) -> tuple[str, list[dict[str, Any]]]:
    """The page as it begins, and the messages that follow."""
    from harness.live_page import live_html

    from lmnb.widgets.tree_model import CacheModel
    from lmnb.widgets.tree_source import Translator, pool_state

    tree = BusyTree(size)
    translator = Translator(tree.decode)
    start = tree.snapshot()
    nodes = translator.rebase(start)
    pool = pool_state(tree.status())
    html = live_html("tree", json.loads(json.dumps(CacheModel(nodes, start.seq).to_json())), pool)
    count = int(seconds * 1000 / _INTERVAL)
    tree.happen(count * _EVENTS)
    fresh = tree.cache_events(start.seq)[: count * _EVENTS]
    began = fresh[0].time
    messages = []
    for number in range(count):
        batch = [translator.translate(event) for event in fresh[number * _EVENTS : (number + 1) * _EVENTS]]
        for place, wire in enumerate(batch):  # as if they had come at the rate at which they are sent
            wire["time"] = began + (number + place / _EVENTS) * _INTERVAL / 1000
        messages.append({"type": "events", "seq": number + 1, "events": batch, "pool": pool})
    return html, messages
