"""Logits at Llama-3.1-8B's shape in bfloat16 beside transformers' in float32 (random weights, on a large GPU).

Run by `test_device_engine.py`. Engine and library compute the same text: prompts in one piece and in pieces, branches
of a shared prefix, decoded under graphs. The engine's log-probabilities must be as near to float32's as the library's
own bfloat16 model is, and within `BOUND` of it.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from device_support import DEVICE, ON_GPU
from torch import Tensor

from lmnb.runtime.config import EngineConfig
from lmnb.runtime.decoder_config import parse_config
from lmnb.runtime.engine import Engine
from lmnb.runtime.llama import LlamaModel
from lmnb.runtime.request import Completion, Request, SamplingParams
from lmnb.runtime.testing import ByteTokenizer

NEEDED_GIB = 85  # the library's weights in float32 and bfloat16, and ours
BOUND = 0.1  # root mean square of a log-probability's error; the logits' own deviation is about 1.3
NUM_TOP, NUM_TOKENS, STEM, BRANCHES = 20, 24, 700, 8
CONFIG: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}


def _has_room() -> bool:
    return ON_GPU and torch.cuda.mem_get_info()[0] > NEEDED_GIB << 30


class _Tensors:
    """Implements `Weights` with the tensors of a model in memory."""

    def __init__(self, model: Any) -> None:
        self._tensors = model.state_dict()

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor: Tensor = self._tensors[name]
        assert tuple(tensor.shape) == shape
        return tensor

    def skip(self, name: str) -> None:
        """Nothing is ever left."""

    def expect_all_read(self, harmless: Any = ()) -> None:
        """Nothing is ever left."""


def _logprobs(model: Any, ids: tuple[int, ...]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids], device=DEVICE)).logits[0].float()
    return logits.log_softmax(-1)


def _ids(count: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1000, 120_000, (count,), generator=generator).tolist())


def _run(engine: Engine, prompts: list[tuple[int, ...]], *, score: bool) -> list[Completion]:
    sampling = SamplingParams(
        temperature=0, max_new_tokens=NUM_TOKENS, ignore_eos=True, return_logprob=True, top_logprobs_num=NUM_TOP
    )
    handles = [
        engine.submit(Request(input_ids=ids, sampling=sampling, logprob_start=0 if score else None)) for ids in prompts
    ]
    return [handle.result() for handle in handles]


@pytest.mark.skipif(not _has_room(), reason=f"needs a GPU with {NEEDED_GIB} GiB free")
def test_logits_are_as_near_to_float32_as_the_librarys_own() -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    with torch.device(DEVICE):
        exact = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG), dtype=torch.float32).eval()
    for parameter in exact.parameters():  # the very weights that bfloat16 holds
        parameter.data = parameter.data.bfloat16().float()
    theirs = copy.deepcopy(exact)
    for parameter in theirs.parameters():  # and not the rotary frequencies, which stay in float32
        parameter.data = parameter.data.bfloat16()
    config = parse_config({**CONFIG, "model_type": "llama"}, "llama-8b")
    model = LlamaModel("llama-8b", config, _Tensors(theirs), torch.bfloat16, torch.device(DEVICE))
    stem = _ids(STEM, 0)
    prompts = [stem + _ids(3 + 11 * i, i + 1) for i in range(BRANCHES)]
    found: dict[str, list[Tensor]] = {}
    for name, options in {"whole": {}, "chunks": {"prefill_chunk": 256}, "strict": {"deterministic": True}}.items():
        engine = Engine(model, ByteTokenizer(), EngineConfig(pool_tokens=16384, **options))
        scored, done = _run(engine, prompts, score=True), _run(engine, prompts, score=False)  # then the stem is shared
        engine.check_integrity()
        engine.close()
        for ids, prompt, completion in zip(prompts, scored, done, strict=True):
            text = ids + completion.token_ids
            truth, peer = _logprobs(exact, text), _logprobs(theirs, text)
            given = torch.tensor([entry.logprob for entry in prompt.input_logprobs[1:]], device=DEVICE)
            at = torch.arange(len(ids) - 1, device=DEVICE), torch.tensor(ids[1:], device=DEVICE)
            found.setdefault(f"{name}: prompt", []).append(given - truth[at])
            found.setdefault("library: prompt", []).append(peer[at] - truth[at])
            for step, entry in enumerate(completion.logprobs):
                row = len(ids) + step - 1
                top = torch.tensor([token for token, _ in entry.top], device=DEVICE)
                values = torch.tensor([value for _, value in entry.top], device=DEVICE)
                found.setdefault(f"{name}: decode", []).append(values - truth[row, top])
                found.setdefault("library: decode", []).append(peer[row, top] - truth[row, top])
    errors = {name: float(torch.cat(parts).square().mean().sqrt()) for name, parts in found.items()}
    print({name: round(error, 5) for name, error in errors.items()})
    for name, error in errors.items():
        assert error < BOUND, errors
        assert error < 1.25 * errors[f"library: {name.partition(': ')[2]}"], errors
