"""Constrained generation: 24 character sheets as JSON, masks, compilation, and what a hostile constraint costs others.

sheets: one prompt each, all handed over at once, greedy, empty prefix cache; a schema of fixed keys, enums, bounded
integers and two short names. `jump` adds forced text at once; `step` writes the same tokens, one step each; `plain`
leaves every token to the model under its mask; `free` has no constraint and writes as many tokens as `step` did on
average. one_sheet: the same, one request alone. transformers: `generate` on the same prompts in one batch with a
logits processor of llguidance, as a user would write it. masks: processor time per mask within `plain`, and how much
of it the engine waited for. compile: the sheets' schema in llguidance; in xgrammar a larger one, cold, again
(memory), and after a restart (disk). stall: the longest gap between two tokens of an unconstrained request, alone and
while hostile constraints are compiled.
The device is a CUDA device if there is one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from benchmarks.harness import interleaved, medians
from lmnb.errors import GrammarError
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel, load_model, resolve_source
from lmnb.runtime.request import Completion, Constraint, Request, SamplingParams, TokenEvent

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
HOSTILE = [
    Constraint("regex", "(?i:" + "[a-zà-ÿ]{0,400}" * 40 + ")"),
    Constraint("regex", "(x+x+)+y" * 500),
    Constraint("json_schema", json.dumps({"anyOf": [{"enum": [f"{i}-{j}" for j in range(40)]} for i in range(200)]})),
    Constraint("ebnf", 'start: s\ns: s s | "a" | "aa"\n'),
]
_MOST_TOKENS = 200


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    loaded = load_model(dtype=options.dtype or "auto")
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    constraint = Constraint("json_schema", json.dumps(SHEET))
    counts = count_tokens(loaded, grammars, constraint)
    measures = {mode: lambda mode=mode: sheets(loaded, grammars, constraint, MODES[mode]) for mode in MODES}
    free = round(counts["tokens_per_sheet"])
    peer = Transformers(options.dtype or "bfloat16")
    report: dict[str, Any] = {"device": str(loaded.model.kv_layout.device), "tokens": counts}
    report["sheets"] = interleaved(
        options.rounds,
        **measures,
        free=lambda: sheets(loaded, grammars, None, {}, new_tokens=free),
        transformers=peer.sheets,
    )
    rate = {name: figures["sheets_per_second"] for name, figures in report["sheets"].items()}
    report["jump_over"] = {name: round(rate["jump"] / rate[name], 2) for name in rate if name != "jump"}
    report["one_sheet_seconds"] = interleaved(
        options.rounds,
        **{mode: lambda mode=mode: one_sheet(loaded, grammars, constraint, MODES[mode]) for mode in MODES},
    )
    report["masks"] = medians([mask_times(loaded, grammars, constraint) for _ in range(options.rounds)])
    report["compile_seconds"] = medians([compile_times(loaded) for _ in range(options.rounds)])
    report["stall"] = medians([stall(loaded) for _ in range(options.rounds)])
    return report


def requests(loaded: LoadedModel, constraint: Constraint | None, new_tokens: int) -> list[Request]:
    """One for each character."""
    sampling = SamplingParams(
        temperature=0.0, max_new_tokens=new_tokens, constraint=constraint, ignore_eos=constraint is None
    )
    prompts = [loaded.tokenizer.encode(PROMPT.format(name), trusted=True) for name in NAMES]
    return [Request(input_ids=tuple(ids), sampling=sampling) for ids in prompts]


def run(engine: Engine, batch: list[Request]) -> list[Completion]:
    """All at once."""
    handles = [engine.submit(request) for request in batch]
    return [handle.result() for handle in handles]


def count_tokens(loaded: LoadedModel, grammars: Grammars, constraint: Constraint) -> dict[str, float]:
    """How much of a sheet is forced; every sheet is checked."""
    engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(), grammars)
    completions = run(engine, requests(loaded, constraint, _MOST_TOKENS))
    engine.close()
    assert all(set(json.loads(completion.text)) == set(SHEET["required"]) for completion in completions)
    tokens = sum(completion.completion_tokens for completion in completions)
    return {
        "tokens_per_sheet": tokens / len(NAMES),
        "forced_share": round(sum(completion.num_forced_tokens for completion in completions) / tokens, 3),
        "steps_per_sheet": sum(completion.num_steps for completion in completions) / len(NAMES),
    }


def sheets(
    loaded: LoadedModel,
    grammars: Grammars,
    constraint: Constraint | None,
    mode: dict[str, Any],
    *,
    new_tokens: int = _MOST_TOKENS,
) -> dict[str, float]:
    """Throughput of one mode, on an engine of its own."""
    engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(**mode), grammars)
    began = time.perf_counter()
    completions = run(engine, requests(loaded, constraint, new_tokens))
    seconds = time.perf_counter() - began
    engine.close()
    tokens = sum(completion.completion_tokens for completion in completions)
    return {"sheets_per_second": len(NAMES) / seconds, "output_tokens_per_second": tokens / seconds}


def one_sheet(
    loaded: LoadedModel, grammars: Grammars, constraint: Constraint, mode: dict[str, Any]
) -> dict[str, float]:
    """Seconds of a request that has the engine for itself."""
    engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(**mode), grammars)
    (completion,) = run(engine, requests(loaded, constraint, _MOST_TOKENS)[:1])
    engine.close()
    return {"seconds": completion.total_seconds, "tokens": completion.completion_tokens, "steps": completion.num_steps}


def mask_times(loaded: LoadedModel, grammars: Grammars, constraint: Constraint) -> dict[str, float]:
    """What masks cost, and how much of that hides behind the forward pass."""
    engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(plain_masks=True), grammars)
    run(engine, requests(loaded, constraint, _MOST_TOKENS))
    status = engine.status()
    engine.close()
    return {
        "microseconds_per_mask": 1e6 * status.mask_seconds / status.num_masks,
        "masks_share_of_step_time": status.mask_seconds / status.step_seconds,
        "waited_share_of_mask_time": status.mask_wait_seconds / status.mask_seconds,
    }


def compile_times(loaded: LoadedModel) -> dict[str, float]:
    """Seconds to a matcher. The vocabulary's own preparation is not counted."""
    large = {
        "type": "object",
        "properties": {f"field_{i}": {"enum": [f"{i}-{j}" for j in range(30)]} for i in range(60)},
    }
    schema = Constraint("json_schema", json.dumps({**large, "required": [*large["properties"]]}))
    sheet = Constraint("json_schema", json.dumps(SHEET))
    before = os.environ.get("LMNB_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LMNB_CACHE"] = folder
        try:
            first, second = (Grammars(loaded.tokenizer, loaded.model.vocab_size) for _ in range(2))
            for grammars in (first, second):
                grammars.compile(Constraint("regex", "a"))
                grammars.compile(Constraint("json_schema", '{"type":"integer"}'))
            return {
                "llguidance_cold": timed_compile(first, sheet),
                "xgrammar_cold": timed_compile(first, schema),
                "memory": timed_compile(first, schema),
                "xgrammar_from_disk": timed_compile(second, schema),
            }
        finally:
            os.environ.pop("LMNB_CACHE")
            if before is not None:
                os.environ["LMNB_CACHE"] = before


def timed_compile(grammars: Grammars, constraint: Constraint) -> float:
    """Seconds of one compilation."""
    began = time.perf_counter()
    grammars.compile(constraint)
    return time.perf_counter() - began


def stall(loaded: LoadedModel) -> dict[str, float]:
    """The longest wait for a next token, in seconds, of a request that has nothing to do with the others."""
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(), grammars)
    ids = tuple(loaded.tokenizer.encode("The sea"))
    request = Request(input_ids=ids, sampling=SamplingParams(max_new_tokens=48, temperature=0.0, ignore_eos=True))
    alone = longest_gap(engine, request, [])
    beside = longest_gap(engine, request, HOSTILE)
    engine.close()
    return {"longest_gap_alone": alone, "longest_gap_beside_hostile_constraints": beside}


def longest_gap(engine: Engine, request: Request, hostile: list[Constraint]) -> float:
    """The hostile requests are of one token, so that only their grammars cost anything."""
    handle = engine.submit(request)
    times: list[float] = []
    others = []
    for event in handle:
        if isinstance(event, TokenEvent):
            times.append(time.perf_counter())
        if len(times) == 8 and not others:
            others = [
                engine.submit(
                    Request(
                        input_ids=request.input_ids, sampling=SamplingParams(max_new_tokens=1, constraint=constraint)
                    )
                )
                for constraint in hostile
            ]
    for other in others:
        with suppress(GrammarError):  # refused or not: what counts is what it cost the first request
            other.result()
    return max(after - before for before, after in itertools.pairwise(times[4:]))


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

        began = time.perf_counter()
        with torch.inference_mode():
            output = self.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=_MOST_TOKENS,
                pad_token_id=2,
                eos_token_id=2,
                logits_processor=[constrain],
            )
        seconds = time.perf_counter() - began
        new = output[:, start:]
        for row in new:
            json.loads(self.tokenizer.decode(row[row != 2]))
        tokens = int((new != 2).sum())
        return {"sheets_per_second": len(NAMES) / seconds, "output_tokens_per_second": tokens / seconds}
