"""`kv_cache_dtype="fp8_e4m3"`: keys and values in 8 bits, beside transformers with its own rounded in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from context_support import fake_runtime
from device_support import DEVICE
from fp8_support import keys_in_fp8, regret
from model_support import random_model, save_model, tiny_model

from lmnb import Runtime
from lmnb.backends.runtime_options import RuntimeOptions
from lmnb.errors import ArgumentError, UnsupportedModelError
from lmnb.kernels.fp8 import FP8
from lmnb.magics.models import LoadedModel as NamedModel
from lmnb.magics.report import status_line
from lmnb.runtime.batch import KVLayout
from lmnb.runtime.cache_size import pool_size, stored_layout
from lmnb.runtime.config import EngineConfig, resolve
from lmnb.runtime.engine import Engine
from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.request import Request, SamplingParams

KINDS = ["llama", "mistral-window", "qwen3", "gemma2", "stablelm"]  # the last two by the transformers library
NUM_TOKENS = 12
LAYOUT = KVLayout(num_layers=2, num_kv_heads=4, head_dim=32, dtype=torch.bfloat16, device=torch.device("cpu"))


def prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(5)
    stem, *rest = (tuple(torch.randint(3, 250, (n,), generator=generator).tolist()) for n in (150, 1, 5, 40, 7))
    return [stem + rest[0], stem + rest[1], stem + rest[2], rest[3]]


@pytest.fixture(scope="module", params=KINDS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LoadedModel]:
    folder = tmp_path_factory.mktemp("model")
    theirs = tiny_model(request.param, folder).to(DEVICE)
    return theirs, load_model(folder, dtype="float32", device=DEVICE)


def make_engine(loaded: LoadedModel, **config: Any) -> Engine:
    config = {"pool_tokens": 2048, "kv_cache_dtype": "fp8_e4m3", **config}
    return Engine(loaded.model, loaded.tokenizer, EngineConfig(**config))


def run(engine: Engine, batch: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    sampling = SamplingParams(temperature=0, max_new_tokens=NUM_TOKENS, ignore_eos=True)
    handles = [engine.submit(Request(input_ids=ids, sampling=sampling)) for ids in batch]
    return [handle.result().token_ids for handle in handles]


@pytest.mark.parametrize("config", [{}, {"prefill_chunk": 16}, {"pool_tokens": 256}, {"prefix_cache": False}], ids=str)
def test_tokens_are_those_of_transformers_with_rounded_keys(
    models: tuple[Any, LoadedModel], config: dict[str, Any]
) -> None:
    theirs, loaded = models
    engine = make_engine(loaded, **config)
    rounds = [[run(engine, [ids])[0] for ids in prompts()], run(engine, prompts())]  # one by one, at once and cached
    engine.check_integrity()
    engine.close()
    exact, rounded = [], []
    for tokens in rounds:
        exact += [regret(theirs, ids, out) for ids, out in zip(prompts(), tokens, strict=True)]
        with keys_in_fp8(theirs):
            rounded += [regret(theirs, ids, out) for ids, out in zip(prompts(), tokens, strict=True)]
    # A key that lies between two numbers may be rounded either way, by a last bit of float32.
    assert torch.cat(rounded).max() < 0.02
    assert torch.cat(exact).max() > 0.05, "the test would not see whether keys are rounded"


def test_strict_mode_gives_the_same_bits(tmp_path: Path) -> None:
    tiny_model("llama", tmp_path)
    loaded = load_model(tmp_path, dtype="float32", device=DEVICE)
    sampling = SamplingParams(temperature=0, max_new_tokens=8, ignore_eos=True, return_logprob=True)
    asked = [Request(input_ids=ids, sampling=sampling) for ids in prompts()]
    found = []
    for config in ({}, {"prefill_chunk": 7}):
        engine = make_engine(loaded, deterministic=True, **config)
        for at_once in (False, True):
            handles = [engine.submit(each) for each in asked] if at_once else None
            done = [handle.result() for handle in handles] if handles else [engine.submit(x).result() for x in asked]
            found.append([[(entry.token_id, entry.logprob) for entry in each.logprobs] for each in done])
        engine.close()
    assert all(each == found[0] for each in found)


def test_the_same_memory_holds_twice_the_tokens() -> None:
    stored = stored_layout(LAYOUT, "fp8_e4m3")
    assert stored == stored_layout(LAYOUT, "fp8")
    assert (stored.dtype, stored.bytes_per_token) == (FP8, LAYOUT.bytes_per_token // 2)
    assert stored_layout(LAYOUT, "auto") == LAYOUT
    assert pool_size("1MiB").tokens(stored) == 2 * pool_size("1MiB").tokens(LAYOUT)
    own, halved = (resolve(EngineConfig(kv_cache_dtype=name), LAYOUT, 1 << 30) for name in ("auto", "fp8_e4m3"))
    assert halved.pool_tokens // 2 == own.pool_tokens


def test_copied_slots_hold_the_same_bytes() -> None:
    pool = KVPool(stored_layout(LAYOUT, "fp8_e4m3"), 8)
    for tensor in (*pool.keys, *pool.values):
        tensor.view(torch.uint8).random_(0, 256, generator=torch.Generator().manual_seed(1))
    before = [tensor.view(torch.uint8).clone() for tensor in (*pool.keys, *pool.values)]
    pool.copy(pool.alloc(3), pool.alloc(3))  # slots 2, 1, 0 are the last of the stack
    after = [tensor.view(torch.uint8) for tensor in (*pool.keys, *pool.values)]
    for old, new in zip(before, after, strict=True):
        assert not torch.equal(old, new)
        source = [i for i in range(9) if torch.equal(old[i], new[i])]
        assert len(source) == 6
        assert {bytes(row.numpy().tobytes()) for row in new} <= {bytes(row.numpy().tobytes()) for row in old}


def test_a_runtime_says_what_its_pool_holds(tmp_path: Path) -> None:
    tiny_model("llama", tmp_path)
    loaded = load_model(tmp_path, dtype="float32", device=DEVICE)
    with (
        Runtime(loaded, kv_cache="1MiB", kv_cache_dtype="fp8_e4m3") as runtime,
        Runtime(loaded, kv_cache="1MiB") as own,
    ):
        status, plain = runtime.status(), own.status()
        assert status.pool_tokens // 4 == plain.pool_tokens  # beside float32
        assert (status.dtype, status.kv_note, plain.kv_note) == ("float32", "fp8_e4m3", "")
        assert status.pool_bytes <= 2**20
        line = status_line(NamedModel("m", runtime, RuntimeOptions()), default=False)  # type: ignore[arg-type]
        assert "KV pool 1.0 MB in fp8_e4m3 for" in line


@pytest.mark.parametrize(
    ("said", "answer"),
    [("int8", "must be 'auto' or 'fp8_e4m3', not 'int8'"), ("fp8_e5m2", "use 'fp8_e4m3'"), (torch.float16, "must be")],
)
def test_other_kinds_are_refused(said: Any, answer: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=answer):
        stored_layout(LAYOUT, said)


def test_models_whose_keys_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="fake has keys or values that do not fit"):
        fake_runtime(kv_cache_dtype="fp8_e4m3")
    for kind in ("llama-bias-gqa", "stablelm"):
        theirs = random_model(kind, use_qkv_bias=True)
        folder = tmp_path / kind
        save_model(theirs, folder)
        assert load_model(folder, dtype="float32", device=DEVICE).model.takes_fp8_keys
        theirs.model.layers[1].self_attn.k_proj.bias.data[3] = 500.0
        save_model(theirs, folder)
        loaded = load_model(folder, dtype="float32", device=DEVICE)
        with pytest.raises(UnsupportedModelError, match="beyond 448"):
            make_engine(loaded)
