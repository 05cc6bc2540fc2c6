"""The cache tree while a thousand events a second come: what its scripts take in a page, frames a second in JupyterLab
in Chromium, what is lost on the way (nothing may be), and what a view that looks on costs the engine.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.browser import measure_cells
from benchmarks.harness import interleaved
from benchmarks.tree_page import measure_page, thread_seconds

_ROOT = Path(__file__).resolve().parent.parent
_SIZES = (500, 1000, 5000)
_RATE = 1000  # events a second
_SECONDS = 6.0

_SETUP = f"""
import json, runpy, threading
%load_ext lmnb
from lmnb.widgets import CacheView
BusyTree = runpy.run_path({str(_ROOT / "benchmarks" / "busy_tree.py")!r})["BusyTree"]
"""
_SHOW = """
tree = BusyTree({size})
view = CacheView(tree, "widget")
view.display()
kinds = []
post = view._widget.post
view._widget.post = lambda message: (kinds.append(message["type"]), post(message))
"""
_RUN = "threading.Thread(target=tree.run, args=({seconds}, {rate})).start()"
_TOLD = """
print(json.dumps({"events": tree.num_events, "nodes": tree.num_nodes, "messages": kinds.count("events"),
                  "resyncs": kinds.count("snapshot"), "seconds_late": tree.seconds_late}))
"""
_FRAMES = """
(seconds) => new Promise((done) => {
  const times = [];
  const note = (now) => {
    times.push(now);
    if (now - times[0] < seconds * 1000) requestAnimationFrame(note);
    else done(times);
  };
  requestAnimationFrame(note);
})
"""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, by the tree's size; and requests a second with a view and without."""
    frames = _frames(options.rounds)
    watched = interleaved(options.rounds, alone=lambda: _serve(False), watched=lambda: _serve(True))
    return {
        "page": measure_page(_SIZES, options.rounds, _SECONDS),
        "frames": frames,
        "engine": {
            **watched,
            "share_lost_to_the_view": round(
                1 - watched["watched"]["requests_per_second"] / watched["alone"]["requests_per_second"], 4
            ),
        },
    }


def _frames(rounds: int) -> dict[str, dict[str, float]]:
    run = _RUN.format(seconds=_SECONDS, rate=_RATE)
    cells = [_SETUP, *(part for size in _SIZES for part in (_SHOW.format(size=size), run, _TOLD))]
    cases = {f"{size}_nodes": 1 + 3 * index for index, size in enumerate(_SIZES)}
    return measure_cells(rounds, cells, cases, _one)


def _one(page: Any, show: int) -> dict[str, float]:
    """One size: show the tree, let it run, count the frames, and compare what the page shows in the end."""
    page.run(show)
    view = page.cell(show)
    view.locator("canvas").wait_for(timeout=20_000)
    view.scroll_into_view_if_needed()
    page.page.wait_for_timeout(1000)
    page.run(show + 1)
    devtools = page.page.context.new_cdp_session(page.page)
    devtools.send("Performance.enable")
    before = thread_seconds(devtools)
    times: list[float] = page.page.evaluate(_FRAMES, _SECONDS - 1)
    busy = thread_seconds(devtools) - before
    page.page.wait_for_timeout(2500)
    page.run(show + 2)
    told = json.loads(page.stream(show + 2))
    words = view.locator("canvas").get_attribute("aria-label")
    shown = int(words.split("Cache tree: ")[1].split(" node")[0].replace(",", ""))
    gaps = sorted(after - before for before, after in pairwise(times))
    view.evaluate("(e) => e.closest('.jp-Cell').scrollIntoView()")
    page.page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-cell-output')")
    return {
        "frames_per_second": round(1000 * len(gaps) / (times[-1] - times[0]), 1),
        "frame_ms_median": round(gaps[len(gaps) // 2], 1),
        "frame_ms_p95": round(gaps[int(0.95 * len(gaps))], 1),
        "frame_ms_worst": round(gaps[-1], 1),
        "processor_share": round(busy / (_SECONDS - 1), 3),  # of one, by the page's main thread, all of Jupyter in it
        "messages": told["messages"],
        "messages_dropped": told["resyncs"],  # each gap that the page notices makes it ask for a snapshot
        "nodes_that_differ": abs(shown - told["nodes"]),
    }


def _serve(watched: bool) -> dict[str, float]:
    """Requests a second of an engine whose model computes nothing, so that all of the time is bookkeeping."""
    from lmnb.backends.local import Runtime
    from lmnb.runtime.fake_model import FakeModel
    from lmnb.runtime.loading import LoadedModel
    from lmnb.runtime.request import Request, SamplingParams
    from lmnb.runtime.testing import ByteTokenizer
    from lmnb.widgets import CacheView

    tokenizer = ByteTokenizer()
    with Runtime(LoadedModel(FakeModel(tokenizer.vocab_size), tokenizer), kv_cache=20_000) as runtime:
        view = CacheView(runtime, "widget") if watched else None
        if view is not None:
            from lmnb.widgets.host import CacheWidget

            view._widget = CacheWidget(view.snapshot, view._on_message)
            view._resume()
        sampling = SamplingParams(temperature=0.0, max_new_tokens=2, ignore_eos=True)
        began = time.perf_counter()
        for round_ in range(40):
            asked = [f"What all have in common. {i % 8} of eight. Question {round_}.{i}" for i in range(32)]
            handles = [
                runtime.submit(Request(input_ids=tuple(tokenizer.encode(text)), sampling=sampling, owner="cell 1"))
                for text in asked
            ]
            for handle in handles:
                handle.result()
        seconds = time.perf_counter() - began
        seq = runtime.snapshot().seq + 1
        if view is not None:
            view.close()
    return {"requests_per_second": 40 * 32 / seconds, "events_per_second": seq / seconds}
