"""The workload of the structured suite: character sheets as JSON, one prompt each, all asked for at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu import LLAMA_8B
from lmnb.runtime.embedded import embedded_gguf
from lmnb.runtime.engine import Engine
from lmnb.runtime.gguf_file import GGUFFile
from lmnb.runtime.gguf_tokenizer import tokenizer_files
from lmnb.runtime.loading import LoadedModel
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
CONSTRAINT = Constraint("json_schema", json.dumps(SHEET))
# No sheet is longer, however a model without training spells it.
MOST_TOKENS = 400
_PROMPT = "<|im_start|>user\nWrite the character sheet of {} as JSON.<|im_end|>\n<|im_start|>assistant\n"


def prompts(count: int) -> list[str]:
    """One text for each of `count` characters, all of them different."""
    rounds = [f"{name} the {number}." if number > 1 else name for number in range(1, 99) for name in NAMES]
    return [_PROMPT.format(name) for name in rounds[:count]]


def requests(
    loaded: LoadedModel, count: int, constraint: Constraint | None, new_tokens: int, texts: list[str] | None = None
) -> list[Request]:
    """One for each character, greedy. Without a constraint it is of exactly `new_tokens`. `texts`: what stands in the
    prompts behind what is asked."""
    sampling = SamplingParams(
        temperature=0.0, max_new_tokens=new_tokens, constraint=constraint, ignore_eos=constraint is None
    )
    asked = [loaded.tokenizer.encode(text, trusted=True) for text in prompts(count)]
    more = [loaded.tokenizer.encode(text) for text in texts or [""] * count]
    return [Request(input_ids=(*ids, *text), sampling=sampling) for ids, text in zip(asked, more, strict=True)]


def run(engine: Engine, batch: list[Request]) -> list[Completion]:
    """All at once."""
    handles = [engine.submit(request) for request in batch]
    return [handle.result() for handle in handles]


def check(text: str) -> None:
    """AssertionError unless it is a sheet."""
    assert set(json.loads(text)) == set(SHEET["required"]), text


def write_dummy(folder: Path) -> None:
    """A model folder without weights: Llama-3.1-8B's shape, with the embedded model's tokenizer and the vocabulary
    that goes with it. A few megabytes, for a machine that has neither."""
    folder.mkdir(parents=True, exist_ok=True)
    definition, settings = tokenizer_files(GGUFFile(embedded_gguf()))
    config = {**LLAMA_8B, "vocab_size": 49152, "eos_token_id": 2, "architectures": ["LlamaForCausalLM"]}
    for name, value in (("tokenizer", definition), ("tokenizer_config", settings), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False), "utf-8")
