"""The run view as its reader has it: how long a token takes from the backend to the screen of JupyterLab in Chromium,
what it costs on the wire and in the notebook's file, and how long a fresh kernel takes to its first token.

A scripted backend says words that are all different, at a steady rate, and notes when it said each; the page notes in
which frame each stood there. Both clocks are this machine's.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.browser import measure_cells
from benchmarks.harness import medians
from benchmarks.view import Kernel

_ROOT = Path(__file__).resolve().parent.parent
_STATIC = _ROOT / "lmnb" / "widgets" / "static"
_SECONDS = 6
_CASES = {"20 a second": (20, 1), "200 a second": (200, 1), "64 branches, 20 a second each": (20, 64)}

_SETUP = """
%load_ext lmnb
import json, time
import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.backends.scripted_context import ScriptedContext
from lmnb.widgets.host import ViewWidget

said, wire = {}, []

class TimedContext(ScriptedContext):
    def fork(self):
        return TimedContext(self.backend, self._parts, self._role)

    async def generate(self, params, *, on_delta, **options):
        def tell(delta):
            said[delta.text.strip()] = time.time()
            on_delta(delta)
        return await super().generate(params, on_delta=tell, **options)

class TimedBackend(ScriptedBackend):
    def new_context(self):
        return TimedContext(self)

post = ViewWidget.post
def counted(widget, message):
    wire.append(len(json.dumps(message, ensure_ascii=False).encode()))
    post(widget, message)
ViewWidget.post = counted

def begin(rate, count):
    said.clear(), wire.clear()
    words = lambda call: " ".join(f"b{call.owner.branch.replace('.', 'x')}w{i}" for i in range(count))
    lmnb.set_default_backend(TimedBackend(words, token_delay=1 / rate))
"""
_CELL = """%%lmprog --max-tokens 100000
branches = s.fork({branches}) if {branches} > 1 else [s]
for branch in branches:
    branch += gen("x")"""
_TOLD = "print(json.dumps([said, wire]))"
_WATCH = """
() => {
  window.seen = {};
  const known = new Map();
  let fresh = [];
  const look = () => {
    const now = performance.timeOrigin + performance.now();
    for (const word of fresh) window.seen[word] ??= now; // drawn in the frame before this one
    fresh = [];
    for (const el of document.querySelectorAll('.lmnb:not(.lmnb-static) :is(.lmnb-gen, .lmnb-preview:not([hidden]))')) {
      const text = el.textContent;
      if (known.get(el) === text) continue;
      known.set(el, text);
      for (const word of text.slice(-400).match(/b[\\dx]+w\\d+/g) ?? []) if (!(word in window.seen)) fresh.push(word);
    }
    window.watching = requestAnimationFrame(look);
  };
  window.watching = requestAnimationFrame(look);
}
"""
_START = '%%lmprog -t 0\ns += user("Hello!") + assistant(gen("x", max_tokens=1))'


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Lags in milliseconds, bytes, seconds: medians over rounds."""
    return {
        "token_to_screen": _lags(options.rounds),
        "bundle_bytes": {path.name: path.stat().st_size for path in sorted(_STATIC.iterdir())},
        "start": medians([_start() for _ in range(options.rounds)]),
    }


def _lags(rounds: int) -> dict[str, dict[str, float]]:
    cells = [_SETUP]
    for rate, branches in _CASES.values():
        cells += [f"begin({rate}, {rate * _SECONDS})", _CELL.format(branches=branches), _TOLD]
    cases = {name: 1 + 3 * index for index, name in enumerate(_CASES)}
    return measure_cells(rounds, cells, cases, _one)


def _one(page: Any, first: int) -> dict[str, float]:
    """One case: watch the page while the cell runs, and compare when each word was said and when it was seen."""
    page.run(first)
    page.page.evaluate(_WATCH)
    page.run(first + 1)
    page.page.wait_for_timeout(500)
    seen: dict[str, float] = page.page.evaluate("() => { cancelAnimationFrame(window.watching); return window.seen; }")
    page.run(first + 2)
    said, wire = json.loads(page.stream(first + 2))
    lags = sorted(seen[word] - 1000 * moment for word, moment in said.items() if word in seen)
    output = len(json.dumps(page.outputs(first + 1)))
    page.page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    return {
        "lag_ms_median": round(lags[len(lags) // 2], 1),
        "lag_ms_p95": round(lags[int(0.95 * len(lags))], 1),
        "tokens": len(said),
        "tokens_seen": len(lags),  # a folded line shows only the end of its text, so that some are never there
        "messages": len(wire),
        "bytes_a_token": round(sum(wire) / len(said), 1),
        "notebook_bytes": output,  # of the finished cell's outputs, in the notebook's file
    }


def _start() -> dict[str, float]:
    """A fresh kernel, from `%load_ext` to the first token; the model's files have been read before."""
    with Kernel() as kernel:
        kernel.run("import json, time\nbegan = time.perf_counter()")
        kernel.run("%load_ext lmnb")
        kernel.run("loaded = time.perf_counter()")
        kernel.run("%lmnb load")
        kernel.run(_START)
        (output,) = kernel.run("print(json.dumps([loaded - began, time.perf_counter() - began]))")
        extension, token = json.loads(output.text)
    time.sleep(1)
    return {"seconds_to_load_ext": round(extension, 3), "seconds_to_first_token": round(token, 3)}
