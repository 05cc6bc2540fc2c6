"""In bfloat16 a step's logits depend, in their last bits, on how many tokens it computes. So jumps may turn a near-tie.

Every difference between a run with jumps and one without is explained here: where the two part, the same tokens stand
before, and the two chosen tokens are as likely as each other within the rounding that was measured at that very place.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from lmnb.runtime.batch import ForwardBatch
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.request import Constraint, Request, SamplingParams

# How many tokens are computed at once, for how many of a text's last: products of few rows are added up in another
# order than those of many, so it matters how what stands far before was computed, too.
_ALL = 1 << 20
_WAYS = ((_ALL, 24), (12, 24), (5, 24), (1, 24), (12, _ALL), (5, _ALL), (1, _ALL))
_LIKELY = 64
PROMPT = "<|im_start|>user\nWrite the character sheet of {} as JSON.<|im_end|>\n<|im_start|>assistant\n"
NAMES = ("Harry", "Hermione", "Ron", "Draco", "Luna", "Neville", "Ginny", "Fred")
WORD = {"type": "string", "pattern": "^[A-Z][a-z]{1,12}$"}
SHEET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "first_name": WORD,
        "house": {"enum": ["Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"]},
        "occupation": {"enum": ["student", "teacher", "auror", "ministry official", "unknown"]},
        "length_of_wand": {"type": "integer", "minimum": 0, "maximum": 999},
        "is_still_alive": {"type": "boolean"},
        "patronus": WORD,
        "born": {"type": "integer", "minimum": 1900, "maximum": 1999},
        "is_famous": {"type": "boolean"},
        "years_at_school": {"type": "integer", "minimum": 1, "maximum": 99},
    },
}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(dtype="bfloat16")


def last_logits(loaded: LoadedModel, ids: list[int], at_once: int, last: int = 24) -> torch.Tensor:
    """float32 [V]: what is said to follow `ids`, whose `last` tokens are computed `at_once` at a time."""
    layout, count = loaded.model.kv_layout, len(ids)
    at = layout.device
    shape = (count, layout.num_kv_heads, layout.head_dim)
    zeros = torch.zeros(shape, dtype=layout.dtype, device=at)
    keys, values = ([zeros.clone() for _ in range(layout.num_layers)] for _ in range(2))
    starts = [0, *range(max(1, count - last), count, at_once), count]
    for start, stop in itertools.pairwise(starts):
        places = torch.arange(start, stop, device=at)
        batch = ForwardBatch(
            input_ids=torch.tensor(ids[start:stop], device=at),
            positions=places,
            out_slots=places,
            slot_table=torch.arange(stop, device=at)[None],
            query_starts=[0, stop - start],
            kv_lens=[stop],
            logits_rows=torch.tensor([stop - start - 1], device=at),
            num_decode=int(stop - start == 1),
        )
        logits = loaded.model.forward(batch, keys, values)
    return logits[0].float().cpu()


def explain(loaded: LoadedModel, ids: list[int], one: int, other: int) -> str | None:
    """Why `one` and `other` were both taken for the likeliest token behind `ids`; None if rounding does not say it."""
    logits = torch.stack([last_logits(loaded, ids, *way) for way in _WAYS])
    likely = logits.mean(0).topk(_LIKELY).indices.tolist()
    rounding = float((logits.amax(0) - logits.amin(0))[[*likely, one, other]].max())
    margins = logits[:, one] - logits[:, other]
    if float(margins.abs().min()) > rounding:
        return None
    return f"margins {[round(float(m), 3) for m in margins]}, rounding {rounding:.3f}"


@pytest.mark.model
@pytest.mark.timeout(580)
def test_every_difference_in_bfloat16_is_a_near_tie(loaded: LoadedModel) -> None:
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    schema = {**SHEET, "required": [*SHEET["properties"]]}
    sampling = SamplingParams(
        max_new_tokens=120, temperature=0.0, constraint=Constraint("json_schema", json.dumps(schema))
    )
    prompts = [loaded.tokenizer.encode(PROMPT.format(name), trusted=True) for name in NAMES]
    batch = [Request(input_ids=tuple(ids), sampling=sampling) for ids in prompts]
    results = []
    for jumps in (True, False):
        engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(jump_forward=jumps), grammars)
        handles = [engine.submit(request) for request in batch]
        results.append([handle.result(timeout=240) for handle in handles])
        engine.close()
    for request, jumped, stepped in zip(batch, *results, strict=True):
        pairs = zip(jumped.token_ids, stepped.token_ids, strict=False)
        parting = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        if parting is None:
            assert jumped.token_ids == stepped.token_ids
            continue
        one, other = jumped.token_ids[parting], stepped.token_ids[parting]
        before = [*request.input_ids, *jumped.token_ids[:parting]]
        found = explain(loaded, before, one, other)
        assert found is not None, (loaded.tokenizer.decode(before[-8:]), one, other)
        print(f"{loaded.tokenizer.decode((one,))!r} or {loaded.tokenizer.decode((other,))!r}: {found}")


@pytest.mark.model
def test_another_choice_than_a_near_tie_is_not_explained(loaded: LoadedModel) -> None:
    """The tool can say no: the likeliest token and the tenth are no tie."""
    ids = loaded.tokenizer.encode("The capital of France is the city of")
    likely = last_logits(loaded, ids, _ALL).topk(10).indices.tolist()
    assert explain(loaded, ids, likely[0], likely[9]) is None
    assert explain(loaded, ids, likely[0], likely[0]) is not None
    assert np.isfinite(float(last_logits(loaded, ids, 1).max()))
