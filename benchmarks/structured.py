"""Constrained generation: character sheets as JSON, with forced text at once and without, and as others do it.

sheets: so many prompts handed over at once, greedy, empty prefix cache; a schema of fixed keys, enums, bounded
integers and two short names. `jump` adds forced text at once; `step` writes the same tokens, one step each; `plain`
leaves every token to the model under its mask; `free` has no constraint and writes as many tokens as `step` did on
average. Of 24 also: `known` has the sheets' text in its prompts, so that no jump can be quicker; `transformers` does
them as a user of that library would (see `structured_peer`). jump_over: how many times a mode's throughput `jump` has.
overlap: what the masks of a decode step cost, and how much of that hides behind the forward pass. masks: see
`structured_masks`. compile_seconds and stall: see `structured_compile`.

The device is a CUDA device if there is one; there three runs before the timed one capture graphs. `--write-dummy DIR`
writes a folder of Llama-3.1-8B's shape with the embedded model's tokenizer; `--dummy DIR` measures that, with weights
made up (`plain` is left out: without training a model spells keys by letters). `--only` names parts: sheets,
transformers, overlap, masks, compile, stall.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import interleaved, medians
from benchmarks.sheets import CONSTRAINT, MOST_TOKENS, NAMES, check, requests, run, write_dummy
from benchmarks.structured_compile import compile_times, stall
from benchmarks.structured_masks import mask_times
from benchmarks.structured_peer import Transformers
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.events import EngineStatus
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.request import Request

MODES: dict[str, dict[str, Any]] = {"jump": {}, "step": {"jump_forward": False}, "plain": {"plain_masks": True}}
_POOL_TOKENS = 32768  # for 64 sheets of the longest kind
_PARTS = ("sheets", "transformers", "overlap", "masks", "compile", "stall")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, or those of the parts that `options.only` names."""
    if options.write_dummy is not None:
        write_dummy(options.write_dummy)
        sys.exit(f"written: {options.write_dummy}")
    only = set(options.only or _PARTS)
    dummy: Path | None = options.dummy
    peer = Transformers(options.dtype or "bfloat16", dummy) if "transformers" in only else None
    loaded = load_model(dummy, dtype=options.dtype or "auto", load_format="auto" if dummy is None else "dummy")
    device = loaded.model.kv_layout.device
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else str(device)
    report: dict[str, Any] = {"device": name, "model": loaded.model.name, "weights": "made up" if dummy else "trained"}
    sheets = Sheets(loaded, modes=[mode for mode in MODES if mode != "plain" or dummy is None])
    counts = (1, len(NAMES), 64) if on_gpu else (1, 8, len(NAMES))
    if "sheets" in only:
        report["tokens"] = sheets.count_tokens()
        report["sheets"] = {}
        for count in counts:
            measures = sheets.measures(count)
            if count == len(NAMES):
                measures["known"] = sheets.known
                if peer is not None:
                    measures["transformers"] = partial(peer.sheets, count)
            report["sheets"][count] = interleaved(options.rounds, **measures)
        report["jump_over"] = {count: over(figures) for count, figures in report["sheets"].items()}
    if "overlap" in only:
        report["overlap"] = {count: medians([sheets.overlap(count) for _ in range(options.rounds)]) for count in counts}
    if "masks" in only:
        report["masks"] = mask_times(loaded)
    if "compile" in only:
        report["compile_seconds"] = medians([compile_times(loaded) for _ in range(options.rounds)])
    if "stall" in only:
        report["stall"] = stall(loaded, options.rounds)
    return report


def over(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """How many times the throughput of each other mode that of `jump` is."""
    rate = {name: values["sheets_per_second"] for name, values in figures.items()}
    return {name: round(rate["jump"] / rate[name], 2) for name in rate if name != "jump"}


class Sheets:
    """The sheets on engines of one model. `modes`: how they are asked for (see `MODES`)."""

    def __init__(self, loaded: LoadedModel, modes: list[str]) -> None:
        self._loaded = loaded
        self._modes = modes
        self._grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
        self._on_gpu = loaded.model.kv_layout.device.type == "cuda"
        self._tokens_per_sheet = 0.0
        self._texts: list[str] = []

    def count_tokens(self) -> dict[str, float]:
        """How much of a sheet is forced, how many steps a batch takes with jumps and without; checks the sheets."""
        figures: dict[str, float] = {}
        for mode in ("step", "jump"):
            engine = self._engine(**MODES[mode])
            completions = run(engine, requests(self._loaded, len(NAMES), CONSTRAINT, MOST_TOKENS))
            figures[f"batch_steps_{mode}"] = engine.status().num_steps
            engine.close()
            self._texts = [completion.text for completion in completions]
            for text in self._texts:
                check(text)
            tokens = sum(completion.completion_tokens for completion in completions)
            figures[f"steps_per_sheet_{mode}"] = sum(completion.num_steps for completion in completions) / len(NAMES)
        forced = sum(completion.num_forced_tokens for completion in completions)
        self._tokens_per_sheet = tokens / len(NAMES)
        return {"tokens_per_sheet": self._tokens_per_sheet, "forced_share": round(forced / tokens, 3), **figures}

    def measures(self, count: int) -> dict[str, Callable[[], dict[str, float]]]:
        """One for each mode, and `free`."""
        batch = requests(self._loaded, count, CONSTRAINT, MOST_TOKENS)
        free = requests(self._loaded, count, None, round(self._tokens_per_sheet))
        modes = {mode: partial(self._timed, batch, **MODES[mode]) for mode in self._modes}
        return {**modes, "free": partial(self._timed, free)}

    def known(self) -> dict[str, float]:
        """Prompts that hold the sheets already, and one token more each."""
        return self._timed(requests(self._loaded, len(NAMES), None, 1, self._texts))

    def overlap(self, count: int, new_tokens: int = 60) -> dict[str, float]:
        """What masks cost beside the forward pass, where each token has one of its own."""
        engine = self._engine(plain_masks=True)
        batch = requests(self._loaded, count, CONSTRAINT, new_tokens)
        before = self._prepare(engine, batch)
        run(engine, batch)
        after = engine.status()
        engine.close()
        names = ("num_steps", "num_masks", "mask_seconds", "mask_wait_seconds", "step_seconds")
        steps, masks, seconds, waited, step_seconds = (getattr(after, n) - getattr(before, n) for n in names)
        return {
            "microseconds_per_mask": 1e6 * seconds / masks,
            "microseconds_per_step": 1e6 * seconds / steps,
            "masks_per_step": masks / steps,
            "step_milliseconds": 1e3 * step_seconds / steps,
            "share_of_step_time": seconds / step_seconds,
            "share_hidden": max(0.0, 1 - waited / seconds),
        }

    def _engine(self, **mode: Any) -> Engine:
        config = EngineConfig(pool_tokens=_POOL_TOKENS, **mode)
        return Engine(self._loaded.model, self._loaded.tokenizer, config, self._grammars)

    def _prepare(self, engine: Engine, batch: list[Request]) -> EngineStatus:
        """Capture what the batch needs on a GPU; the counters after that. Requests do not fall into steps in quite the
        same way each time, so that one run does not meet every graph."""
        for _ in range(3 if self._on_gpu else 0):
            run(engine, batch)
            assert engine.flush_cache()
        return engine.status()

    def _timed(self, batch: list[Request], **mode: Any) -> dict[str, float]:
        """Throughput of one mode, on an engine of its own."""
        engine = self._engine(**mode)
        self._prepare(engine, batch)
        began, began_cpu = time.perf_counter(), time.process_time()
        completions = run(engine, batch)
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        engine.close()
        tokens = sum(completion.completion_tokens for completion in completions)
        return {
            "sheets_per_second": len(batch) / seconds,
            "output_tokens_per_second": tokens / seconds,
            "processor_seconds": cpu,
        }
