"""Greedy tokens of the engine's GPU side equal transformers' own, whatever the engine does. float32, tiny models.

Run by `test_device_engine.py`: on the GPU that `LMNB_TEST_DEVICE=cuda` asks for, or under Triton's interpreter with
less of everything (the same executor and attention kernels; no graphs).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support import masked_logits, random_model
from small_tokenizers import small_tokenizer

from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.prompt_layout import PromptLayout, Section
from lmnb.runtime.request import Completion, Request, SamplingParams

DEVICE = os.environ.get("LMNB_TEST_DEVICE", "cpu")
ON_GPU = DEVICE == "cuda"
NUM_TOKENS = 48 if ON_GPU else 4
STEM = 700 if ON_GPU else 270  # long enough for the shared part to be read apart
KINDS = ["llama", "mistral-window", "qwen3", "llama-bias-gqa"] if ON_GPU else ["llama"]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"prefill_chunk": 16},
    {"pool_tokens": STEM + 300, "prefill_chunk": 256},
    {"tree_attention": False},
    {"overlap": False},
    {"cuda_graphs": False},
    {"prefix_cache": False, "max_running": 3},
]


@pytest.fixture(scope="module", params=KINDS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LoadedModel]:
    """transformers' model, and ours of the same files."""
    folder: Path = tmp_path_factory.mktemp("model")
    theirs = random_model(request.param, max_position_embeddings=2048)
    theirs.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(small_tokenizer("gpt2")._trusted.to_str(), "utf-8")
    return theirs, load_model(folder, dtype="float32", device=DEVICE)


def prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(5)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 250, (count,), generator=generator).tolist())

    stem, twig = ids(STEM), ids(40)
    shared = [stem + ids(n) for n in (1, 5, 17)] + [stem + twig + ids(n) for n in (2, 3, 30)]
    return [*shared, ids(1), ids(90)] if ON_GPU else shared[:4]


def generate(model: Any, ids: tuple[int, ...]) -> tuple[int, ...]:
    model.to(DEVICE)
    out = model.generate(
        torch.tensor([ids], device=DEVICE),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tuple(out[0, len(ids) :].tolist())


def make_engine(loaded: LoadedModel, config: dict[str, Any]) -> Engine:
    return Engine(loaded.model, loaded.tokenizer, EngineConfig(**{"pool_tokens": 8192, "overlap": True, **config}))


def run(engine: Engine, batch: list[tuple[int, ...]], at_once: bool) -> list[Completion]:
    sampling = SamplingParams(temperature=0, max_new_tokens=NUM_TOKENS, ignore_eos=True)
    if not at_once:
        return [engine.submit(Request(input_ids=ids, sampling=sampling)).result() for ids in batch]
    handles = [engine.submit(Request(input_ids=ids, sampling=sampling)) for ids in batch]
    return [handle.result() for handle in handles]


def test_tokens_are_those_of_transformers(models: tuple[Any, LoadedModel]) -> None:
    theirs, loaded = models
    batch = prompts()
    expected = [generate(theirs, ids) for ids in batch]
    for config in CONFIGS if ON_GPU else CONFIGS[:1]:
        engine = make_engine(loaded, config)
        rounds = (False, True, True) if ON_GPU else (True,)  # alone on a cold cache, at once on a warm one, cold again
        for number, at_once in enumerate(rounds):
            if number == 2:
                assert engine.flush_cache()
            got = [completion.token_ids for completion in run(engine, batch, at_once)]
            assert got == expected, (config, number)
        engine.check_integrity()
        status = engine.status()
        assert status.free_tokens + status.cached_tokens == status.pool_tokens
        engine.close()


@pytest.mark.skipif(not ON_GPU, reason="the same on the CPU, where its own tests show it")
def test_seeded_draws_and_penalties_do_not_depend_on_the_batch(models: tuple[Any, LoadedModel]) -> None:
    _, loaded = models
    engine = make_engine(loaded, {})

    def request(ids: tuple[int, ...], seed: int, **more: Any) -> Request:
        sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=seed, max_new_tokens=24, ignore_eos=True, **more)
        return Request(input_ids=ids, sampling=sampling)

    batch = [request(ids, i, frequency_penalty=0.5 * (i % 2)) for i, ids in enumerate(prompts())]
    alone = [engine.submit(each).result().token_ids for each in batch]
    together = [handle.result().token_ids for handle in [engine.submit(each) for each in batch]]
    assert together == alone
    stop = alone[0][10]
    first_end = next(i for i, token in enumerate(alone[0]) if token in loaded.tokenizer.eos_ids | {stop})
    again = Request(input_ids=batch[0].input_ids, sampling=SamplingParams(
        temperature=0.8, top_p=0.9, seed=0, max_new_tokens=24, stop_token_ids=(stop,)))  # fmt: skip
    ended = engine.submit(again).result()
    assert ended.token_ids == alone[0][: first_end + 1]
    engine.check_integrity()
    engine.close()


@pytest.mark.skipif(not ON_GPU, reason="there is no device memory to give back")
def test_closing_gives_all_memory_back(models: tuple[Any, LoadedModel]) -> None:
    _, loaded = models
    used = []
    for _ in range(5):
        engine = make_engine(loaded, {})
        run(engine, prompts(), at_once=True)
        engine.close()
        del engine
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_reserved())
    assert used[-1] <= used[0]


def test_a_plan_too_large_for_a_graph_runs_without_one(models: tuple[Any, LoadedModel]) -> None:
    theirs, loaded = models
    batch = prompts()
    engine = make_engine(loaded, {})
    executor: Any = engine._loop._executor
    executor._has_room = lambda items, num_rows: False
    assert [completion.token_ids for completion in run(engine, batch[-1:], True)] == [
        generate(theirs, ids) for ids in batch[-1:]
    ]
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize("config", [{}, {"prefill_chunk": 16}] if ON_GPU else [{"prefill_chunk": 16}])
def test_joined_prompts_see_what_their_layout_says(models: tuple[Any, LoadedModel], config: dict[str, Any]) -> None:
    theirs, loaded = models
    theirs.to(DEVICE)
    engine = make_engine(loaded, config)
    stem, first, second, tail = (ids[:count] for ids, count in zip(prompts()[:4], (20, 9, 12, 2), strict=True))
    n, prompt = len(stem), stem + first + second + tail
    moved = PromptLayout.of([Section(n, n + 30, ((0, n),))])
    layout = PromptLayout.of(
        [Section(n, n, ((0, n),)), Section(n + 9, n + 30, ((0, n),)), Section(n + 21, n + 42, ((0, n + 21),))]
    )
    plain = SamplingParams(temperature=0, max_new_tokens=0)
    sampling = SamplingParams(temperature=0, max_new_tokens=NUM_TOKENS, ignore_eos=True)
    if config.get("prefill_chunk"):  # cached: it is copied
        engine.submit(Request(input_ids=stem + second, sampling=plain, layout=moved)).result()
    asked = [Request(input_ids=prompt, sampling=sampling, layout=layout), Request(input_ids=prompt, sampling=sampling)]
    for _ in range(2):
        for each, handle in [(each, engine.submit(each)) for each in asked]:
            tokens = handle.result().token_ids
            rows = masked_logits(theirs, prompt + tokens[:-1], each.layout)[len(prompt) - 1 :]
            assert rows.argmax(-1).tolist() == list(tokens)
    engine.check_integrity()
    engine.close()


def test_strict_mode_gives_the_same_bits_whatever_happens(models: tuple[Any, LoadedModel]) -> None:
    _, loaded = models
    stem = prompts()[0][: 200 if ON_GPU else 8]
    sampling = SamplingParams(temperature=0, max_new_tokens=NUM_TOKENS, ignore_eos=True, return_logprob=True)
    asked = [Request(input_ids=stem + ids, sampling=sampling) for ids in ((5,), (6, 7, 8))]

    def bits(engine: Engine, at_once: bool) -> list[list[tuple[int, float | None]]]:
        handles = [engine.submit(each) for each in asked] if at_once else None
        done = [handle.result() for handle in handles] if handles else [engine.submit(each).result() for each in asked]
        return [[(entry.token_id, entry.logprob) for entry in each.logprobs] for each in done]

    engine = make_engine(loaded, {"deterministic": True})
    expected = []
    for each in asked:
        assert engine.flush_cache()
        expected.append([(entry.token_id, entry.logprob) for entry in engine.submit(each).result().logprobs])
    assert bits(engine, at_once=True) == expected
    engine.close()
    engine = make_engine(loaded, {"deterministic": True, "prefill_chunk": 5})
    assert bits(engine, at_once=True) == expected
    engine.check_integrity()
    engine.close()
