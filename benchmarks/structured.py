"""Constrained generation: 24 character sheets as JSON, with forced text at once and without, and as others do it.

sheets: one prompt each, all handed over at once, greedy, empty prefix cache; a schema of fixed keys, enums, bounded
integers and two short names. `jump` adds forced text at once; `step` writes the same tokens, one step each; `plain`
leaves every token to the model under its mask; `free` has no constraint and writes as many tokens as `step` did on
average; `known` has the sheets' text in its prompts, so that no jump can be quicker. few_sheets: the same, one and
eight at once. transformers: `generate` on the same prompts in one batch with a logits processor of llguidance, as a
user would write it. masks: processor time per mask and per step within `plain`, and how much of it hid behind the
forward pass. compile_seconds and stall: see `structured_compile`. The device is a CUDA device if there is one.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from benchmarks.harness import interleaved, medians
from benchmarks.structured_compile import compile_times, stall
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel, load_model, resolve_source
from lmnb.runtime.request import Completion, Constraint, Request, SamplingParams

NAMES = [
    "Harry", "Hermione", "Ron", "Draco", "Luna", "Neville", "Ginny", "Fred", "George", "Albus", "Minerva", "Severus",
    "Sirius", "Remus", "Rubeus", "Dolores", "Bellatrix", "Lucius", "Molly", "Arthur", "Cho", "Cedric", "Viktor", "Lily",
]  # fmt: skip
WORD = {"type": "string", "pattern": "^[A-Z][a-z]{1,12}$"}
SHEET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first_name": WORD,
        "house": {"enum": ["Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"]},
        "blood_status": {"enum": ["Pure-blood", "Half-blood", "Muggle-born"]},
        "occupation": {"enum": ["student", "teacher", "auror", "ministry official", "unknown"]},
        "wand": {
            "type": "object",
            "properties": {
                "wood": {"enum": ["oak", "holly", "elm", "willow"]},
                "core": {"enum": ["phoenix feather", "dragon heartstring", "unicorn hair"]},
                "length_in_inches": {"type": "integer", "minimum": 8, "maximum": 16},
            },
            "required": ["wood", "core", "length_in_inches"],
            "additionalProperties": False,
        },
        "is_still_alive": {"type": "boolean"},
        "patronus": WORD,
        "years_at_school": {"type": "integer", "minimum": 1, "maximum": 7},
    },
}
SHEET.update(required=[*SHEET["properties"]], additionalProperties=False)
PROMPT = "<|im_start|>user\nWrite the character sheet of {} as JSON.<|im_end|>\n<|im_start|>assistant\n"
MODES: dict[str, dict[str, Any]] = {"jump": {}, "step": {"jump_forward": False}, "plain": {"plain_masks": True}}
_MOST_TOKENS = 200


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    loaded = load_model(dtype=options.dtype or "auto")
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    constraint = Constraint("json_schema", json.dumps(SHEET))
    counts, texts = count_tokens(loaded, grammars, constraint)

    def modes(count: int) -> dict[str, Any]:
        batch = requests(loaded, constraint, _MOST_TOKENS)[:count]
        return {mode: lambda mode=mode: sheets(loaded, grammars, batch, **MODES[mode]) for mode in MODES}

    free = requests(loaded, None, round(counts["tokens_per_sheet"]))
    known = requests(loaded, None, 1, texts)
    peer = Transformers(options.dtype or "bfloat16")
    report: dict[str, Any] = {"device": str(loaded.model.kv_layout.device), "tokens": counts}
    report["sheets"] = interleaved(
        options.rounds,
        **modes(len(NAMES)),
        free=lambda: sheets(loaded, grammars, free),
        known=lambda: sheets(loaded, grammars, known),
        transformers=peer.sheets,
    )
    report["jump_over"] = over(report["sheets"])
    report["few_sheets"] = {count: interleaved(options.rounds, **modes(count)) for count in (1, 8)}
    report["few_sheets_jump_over"] = {count: over(figures) for count, figures in report["few_sheets"].items()}
    report["masks"] = medians([mask_times(loaded, grammars, constraint) for _ in range(options.rounds)])
    report["compile_seconds"] = medians([compile_times(loaded, SHEET) for _ in range(options.rounds)])
    report["stall"] = medians([stall(loaded) for _ in range(options.rounds)])
    return report


def over(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """How many times the throughput of each other mode that of `jump` is."""
    rate = {name: values["sheets_per_second"] for name, values in figures.items()}
    return {name: round(rate["jump"] / rate[name], 2) for name in rate if name != "jump"}


def requests(
    loaded: LoadedModel, constraint: Constraint | None, new_tokens: int, texts: list[str] | None = None
) -> list[Request]:
    """One for each character. `texts`: what stands in the prompts behind what is asked."""
    sampling = SamplingParams(
        temperature=0.0, max_new_tokens=new_tokens, constraint=constraint, ignore_eos=constraint is None
    )
    prompts = [loaded.tokenizer.encode(PROMPT.format(name), trusted=True) for name in NAMES]
    more = [loaded.tokenizer.encode(text) for text in texts or [""] * len(NAMES)]
    return [Request(input_ids=(*ids, *text), sampling=sampling) for ids, text in zip(prompts, more, strict=True)]


def run(engine: Engine, batch: list[Request]) -> list[Completion]:
    """All at once."""
    handles = [engine.submit(request) for request in batch]
    return [handle.result() for handle in handles]


def count_tokens(loaded: LoadedModel, grammars: Grammars, constraint: Constraint) -> tuple[dict[str, float], list[str]]:
    """How much of a sheet is forced, how many steps the batch takes with jumps and without; and the sheets, checked."""
    figures: dict[str, float] = {}
    texts: list[str] = []
    for mode in ("step", "jump"):
        engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(**MODES[mode]), grammars)
        completions = run(engine, requests(loaded, constraint, _MOST_TOKENS))
        figures[f"batch_steps_{mode}"] = engine.status().num_steps
        engine.close()
        texts = [completion.text for completion in completions]
        assert all(set(json.loads(text)) == set(SHEET["required"]) for text in texts)
        tokens = sum(completion.completion_tokens for completion in completions)
        figures[f"steps_per_sheet_{mode}"] = sum(completion.num_steps for completion in completions) / len(NAMES)
    forced = sum(completion.num_forced_tokens for completion in completions)
    return {"tokens_per_sheet": tokens / len(NAMES), "forced_share": round(forced / tokens, 3), **figures}, texts


def sheets(loaded: LoadedModel, grammars: Grammars, batch: list[Request], **mode: Any) -> dict[str, float]:
    """Throughput of one mode, on an engine of its own."""
    engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(**mode), grammars)
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


def mask_times(loaded: LoadedModel, grammars: Grammars, constraint: Constraint) -> dict[str, float]:
    """What masks cost, and how much of that hides behind the forward pass."""
    engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(plain_masks=True), grammars)
    run(engine, requests(loaded, constraint, _MOST_TOKENS))
    status = engine.status()
    engine.close()
    return {
        "microseconds_per_mask": 1e6 * status.mask_seconds / status.num_masks,
        "microseconds_per_step": 1e6 * status.mask_seconds / status.num_steps,
        "masks_per_step": status.num_masks / status.num_steps,
        "share_of_step_time": status.mask_seconds / status.step_seconds,
        "share_hidden": max(0.0, 1 - status.mask_wait_seconds / status.mask_seconds),
    }


class Transformers:
    """`generate` with a logits processor, one matcher a row."""

    def __init__(self, dtype: str) -> None:
        import llguidance
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder, _ = resolve_source(None)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(self.device)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.library = llguidance
        self.guide = llguidance.LLTokenizer(self.tokenizer.backend_tokenizer.to_str(), n_vocab=49152, eos_token=2)
        options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        self.grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SHEET), overrides=options)

    def sheets(self) -> dict[str, float]:
        """The same prompts in one batch."""
        matchers = [self.library.LLMatcher(self.guide, self.grammar) for _ in NAMES]
        texts = [PROMPT.format(name) for name in NAMES]
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True).to(self.device)
        start = inputs["input_ids"].shape[1]
        mask = np.zeros((len(NAMES), 49152 // 32), dtype=np.int32)

        def constrain(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            for i, matcher in enumerate(matchers):
                if ids.shape[1] > start and not matcher.is_stopped():
                    matcher.consume_token(int(ids[i, -1]))
                if matcher.is_stopped():
                    mask[i] = 0
                    mask[i, 0] = 1 << 2  # the end token
                else:
                    matcher.unsafe_compute_mask_ptr(mask[i].ctypes.data, mask[i].nbytes)
            bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, : scores.shape[1]]
            return scores.masked_fill(torch.from_numpy(bits == 0).to(scores.device), -torch.inf)

        began, began_cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            output = self.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=_MOST_TOKENS,
                pad_token_id=2,
                eos_token_id=2,
                logits_processor=[constrain],
            )
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        new = output[:, start:]
        for row in new:
            json.loads(self.tokenizer.decode(row[row != 2]))
        tokens = int((new != 2).sum())
        return {
            "sheets_per_second": len(NAMES) / seconds,
            "output_tokens_per_second": tokens / seconds,
            "processor_seconds": cpu,
        }
