"""What the live view costs: tokens per second of a `%%lmprog` cell in a real kernel, with the view and without.

The widget's messages are made, serialised and sent as for a browser; nothing draws them. Cells alternate.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.harness import medians

_NEW = 96
_MODES = ("off", "widget", "html")

_SETUP = """
%load_ext lmnb
%lmnb load smollm2
import json, time
"""

_ASK = """
%%lmprog --view {mode} -t 0
s += user("Write about the sea.")
s += assistant(gen("text", max_tokens={new}, ignore_eos=True))
"""

_FORKS = """
%%lmprog --view {mode} -t 0.8 --seed 1
s += user("Write about the sea.")
branches = s.fork(8)
for branch in branches:
    branch += assistant(gen("text", max_tokens={new}, ignore_eos=True))
branches.join()
"""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second by view mode, for one stream and for eight branches."""
    taken: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {mode: [] for mode in _MODES} for name in ("one_stream", "eight_branches")
    }
    with Kernel() as kernel:
        kernel.run(_SETUP)
        for number in range(options.rounds + 1):
            for name, cell, tokens in (("one_stream", _ASK, _NEW), ("eight_branches", _FORKS, 8 * _NEW)):
                for mode in _MODES:
                    seconds = kernel.timed(cell.format(mode=mode, new=_NEW))
                    if number:
                        taken[name][mode].append({"tokens_per_second": tokens / seconds})
    report: dict[str, Any] = {}
    for name, by_mode in taken.items():
        middle = {mode: medians(figures)["tokens_per_second"] for mode, figures in by_mode.items()}
        cost = {mode: round(1 - middle[mode] / middle["off"], 4) for mode in _MODES[1:]}
        report[name] = {"tokens_per_second": middle, "share_lost_to_the_view": cost}
    return report


class Kernel:
    """An IPython kernel of this environment, run cell by cell."""

    def __enter__(self) -> Kernel:
        import nbformat
        from nbclient import NotebookClient

        self._nbformat = nbformat
        self._client = NotebookClient(nbformat.v4.new_notebook(), timeout=600)
        self._client.create_kernel_manager()
        self._client.start_new_kernel()
        self._client.start_new_kernel_client()
        return self

    def __exit__(self, *_: object) -> None:
        self._client._cleanup_kernel()

    def run(self, source: str) -> list[Any]:
        cell = self._nbformat.v4.new_code_cell(source.strip())
        self._client.nb.cells.append(cell)
        self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        return list(cell.outputs)

    def timed(self, source: str) -> float:
        """Seconds the cell took, by the kernel's own clock."""
        self.run("began = time.perf_counter()")
        self.run(source)
        (output,) = self.run("print(json.dumps(time.perf_counter() - began))")
        seconds: float = json.loads(output.text)
        return seconds
