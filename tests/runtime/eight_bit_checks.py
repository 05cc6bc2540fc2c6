"""8-bit weights on the engine's GPU side: greedy tokens are transformers' with the weights that the 8 bits stand for.

float32, tiny models. Run by `test_device_engine.py`: on the GPU that `LMNB_TEST_DEVICE=cuda` asks for, or under
Triton's interpreter with less of everything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from device_support import DEVICE, ON_GPU
from model_support import random_model, save_model

from lmnb.errors import GenerationError, UnsupportedModelError
from lmnb.kernels.rowwise_linear import MANY_ROWS, quantize_rows
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.llama import LlamaModel
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.request import Request, SamplingParams

NUM_TOKENS = 32 if ON_GPU else 3
LONG = MANY_ROWS + 100 if ON_GPU else 20  # on a GPU so long that its weights are unpacked
MODELS = ["llama", "qwen3", "llama-bias-gqa"] if ON_GPU else ["llama-bias-gqa"]


@pytest.fixture(scope="module", params=[(name, kind) for kind in ("int8", "fp8") for name in MODELS], ids=str)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LoadedModel, str]:
    """transformers' model with weights that went through 8 bits, ours, and the kind."""
    name, kind = request.param
    folder: Path = tmp_path_factory.mktemp("model")
    theirs = save_model(random_model(name, max_position_embeddings=2048), folder)
    for path, module in theirs.named_modules():
        if isinstance(module, torch.nn.Linear) and (kind == "int8" or path != "lm_head"):
            exact = quantize_rows([module.weight.detach()], kind, torch.device("cpu")).dequantized()
            assert 0 < (exact - module.weight).norm() / module.weight.norm() < (0.01 if kind == "int8" else 0.04)
            module.weight.data = exact
    return theirs, load_model(folder, dtype="float32", device=DEVICE, quantization=kind), kind


def prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(7)
    return [tuple(torch.randint(3, 250, (n,), generator=generator).tolist()) for n in (1, 9, LONG)]


def asked(engine: Engine, batch: list[tuple[int, ...]], *, at_once: bool, logprobs: bool = False) -> list[Any]:
    sampling = SamplingParams(temperature=0, max_new_tokens=NUM_TOKENS, ignore_eos=True, return_logprob=logprobs)
    requests = [Request(input_ids=ids, sampling=sampling) for ids in batch]
    if at_once:
        return [handle.result() for handle in [engine.submit(each) for each in requests]]
    return [engine.submit(each).result() for each in requests]


def make_engine(loaded: LoadedModel, **config: Any) -> Engine:
    return Engine(loaded.model, loaded.tokenizer, EngineConfig(pool_tokens=4096, overlap=True, **config))


def test_tokens_are_those_of_the_weights_that_are_meant(models: tuple[Any, LoadedModel, str]) -> None:
    theirs, loaded, kind = models
    theirs.to(DEVICE)
    expected = []
    for ids in prompts():
        out = theirs.generate(
            torch.tensor([ids], device=DEVICE), do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        expected.append(tuple(out[0, len(ids) :].tolist()))
    engine = make_engine(loaded)
    for at_once in (True, False) if ON_GPU else (True,):
        assert [done.token_ids for done in asked(engine, prompts(), at_once=at_once)] == expected
        assert engine.flush_cache()
    engine.check_integrity()
    engine.close()
    assert loaded.model.weight_note == f"8-bit weights ({kind})"


def test_strict_mode_gives_the_same_bits(models: tuple[Any, LoadedModel, str]) -> None:
    _, loaded, kind = models
    if kind == "fp8" and not ON_GPU:
        pytest.skip("the sums are those of int8; the interpreter is slow")
    batch = prompts()[: 3 if ON_GPU else 2]

    def bits(engine: Engine, at_once: bool) -> list[list[tuple[int, float | None]]]:
        done = asked(engine, batch, at_once=at_once, logprobs=True)
        return [[(entry.token_id, entry.logprob) for entry in each.logprobs] for each in done]

    engine = make_engine(loaded, deterministic=True, prefill_chunk=5)
    expected = bits(engine, at_once=False)
    assert engine.flush_cache()
    assert bits(engine, at_once=True) == expected
    engine.close()


def test_weights_that_are_not_finite_show(tmp_path: Path) -> None:
    model = random_model("llama")
    model.model.layers[1].mlp.down_proj.weight.data[5, 7] = float("nan")
    save_model(model, tmp_path)
    loaded = load_model(tmp_path, dtype="float32", device=DEVICE, quantization="int8")
    engine = make_engine(loaded)
    with pytest.raises(GenerationError, match="logits are not finite"):
        asked(engine, prompts()[1:2], at_once=True)
    engine.close()


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    save_model(random_model("phi"), tmp_path)
    with pytest.raises(
        UnsupportedModelError, match="quantization='int8' is for architectures that lmnb runs by itself"
    ):
        load_model(tmp_path, dtype="float32", device=DEVICE, quantization="int8")


@pytest.mark.skipif(not ON_GPU, reason="it is about a GPU's memory")
def test_loading_never_holds_the_weights_twice(tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "vocab_size": 300}
    save_model(random_model("llama", **sizes), tmp_path)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = load_model(tmp_path, device=DEVICE, quantization="int8").model
    assert isinstance(model, LlamaModel)
    layer = model.weight_bytes / 16
    scratch = 2 * (1 << 24)
    assert torch.cuda.max_memory_allocated() - before < model.weight_bytes + scratch + 8 * layer
