"""Greedy tokens of the engine's GPU side equal transformers' own, whatever the engine does. float32, tiny models.

Run by `test_device_engine.py`: on the GPU that `LMNB_TEST_DEVICE=cuda` asks for, or under Triton's interpreter with
less of everything (the same executor and attention kernels; no graphs).
"""

from __future__ import annotations

import gc
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from device_support import DEVICE, ON_GPU
from fp8_support import keys_in_fp8, regret
from late_support import count_late
from model_support import masked_logits, random_model, save_model
from small_tokenizers import small_tokenizer

from lmnb.errors import OutOfMemoryError
from lmnb.kernels.choose_triton import _draw, _take_likeliest
from lmnb.kernels.kept_floor_triton import collect, narrow
from lmnb.kernels.log_sums_triton import _of_rows, _of_tiles
from lmnb.kernels.score_tiles_triton import _penalise
from lmnb.kernels.slot_table_triton import _copy_rows
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.prompt_layout import PromptLayout, Section
from lmnb.runtime.request import Completion, Constraint, Request, SamplingParams
from lmnb.runtime.step_graphs import GraphKey

CHOICE_KERNELS = (_take_likeliest, _draw, narrow, collect, _penalise, _of_tiles, _of_rows, _copy_rows)
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
    (folder / "tokenizer.json").write_text(tokenizer_of(theirs.config.vocab_size), "utf-8")
    return theirs, load_model(folder, dtype="float32", device=DEVICE)


def tokenizer_of(size: int) -> str:
    """A tokenizer's file with the first `size` tokens of a byte-pair encoding."""
    spec = json.loads(small_tokenizer("gpt2")._trusted.to_str())
    model = spec["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < size}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    return json.dumps(spec)


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


def test_tokens_are_those_of_transformers_with_keys_in_8_bits(models: tuple[Any, LoadedModel]) -> None:
    theirs, loaded = models
    theirs.to(DEVICE)
    batch = prompts() if ON_GPU else [ids[220:] for ids in prompts()[:3]]
    for config in [*CONFIGS, {"deterministic": True}] if ON_GPU else CONFIGS[:1]:
        engine = make_engine(loaded, {"kv_cache_dtype": "fp8_e4m3", **config})
        for _ in range(2 if ON_GPU else 1):  # a cold cache, then a warm one
            done = list(zip(batch, [completion.token_ids for completion in run(engine, batch, True)], strict=True))
            with keys_in_fp8(theirs):
                # A key that lies between two numbers may be rounded either way, by a last bit of float32.
                assert max(regret(theirs, ids, tokens).max() for ids, tokens in done) < 0.02, config
            if ON_GPU:
                exact = max(regret(theirs, ids, tokens).max() for ids, tokens in done)
                assert exact > 0.05, "the test would not see whether keys are rounded"
        engine.check_integrity()
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


@pytest.mark.skipif(not ON_GPU, reason="there is no device memory to give back")
def test_loading_running_and_unloading_leaves_memory_flat(tmp_path: Path) -> None:
    save_model(random_model("llama", max_position_embeddings=2048), tmp_path)
    used = []
    for _ in range(5):
        loaded = load_model(tmp_path, dtype="float32", device=DEVICE)
        engine = make_engine(loaded, {})
        run(engine, prompts(), at_once=True)
        engine.close()
        del engine, loaded
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_reserved())
    assert used[-1] <= used[1]  # the first makes what libraries keep for ever


@pytest.mark.skipif(not ON_GPU, reason="about a device's memory")
def test_memory_that_runs_out_is_one_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    save_model(random_model("llama", max_position_embeddings=2048), tmp_path)
    shutil.copytree(tmp_path, tmp_path / "wide")
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(hidden_size=8192, intermediate_size=32768, num_hidden_layers=8)
    (tmp_path / "wide" / "config.json").write_text(json.dumps(config))
    loaded = load_model(tmp_path, dtype="float32", device=DEVICE)
    engine = make_engine(loaded, {})
    batch = [ids[:200] for ids in prompts()[:2]]
    expected = [each.token_ids for each in run(engine, batch, at_once=True)]

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((before + (1 << 30)) / total)  # as if others had the rest
    with pytest.raises(OutOfMemoryError, match=r"wide does not fit into the memory of cuda.* GiB free\): unload"):
        load_model(tmp_path / "wide", dtype="float32", device=DEVICE, load_format="dummy")
    slots = (3 << 30) // loaded.model.kv_layout.bytes_per_token
    with pytest.raises(OutOfMemoryError, match=r"a KV pool of .* does not fit"):
        make_engine(loaded, {"pool_tokens": slots})
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_reserved() <= before

    model: Any = loaded.model
    forward = model.forward
    model.forward = lambda *args: torch.empty(1 << 44, dtype=torch.uint8, device=DEVICE)
    assert engine.flush_cache()
    longest = Request(input_ids=prompts()[0], sampling=SamplingParams(temperature=0, max_new_tokens=4))
    with pytest.raises(Exception, match="a step did not fit into the memory of cuda"):
        engine.submit(longest).result()
    model.forward = forward
    assert [each.token_ids for each in run(engine, batch, at_once=True)] == expected
    engine.check_integrity()
    engine.close()


def test_a_plan_too_large_for_a_graph_runs_without_one(models: tuple[Any, LoadedModel]) -> None:
    theirs, loaded = models
    batch = [ids if ON_GPU else ids[-20:] for ids in prompts()[-1:]]
    engine = make_engine(loaded, {})
    executor: Any = engine._loop._executor
    executor._has_room = lambda items, num_rows: False
    assert [completion.token_ids for completion in run(engine, batch, True)] == [generate(theirs, ids) for ids in batch]
    engine.check_integrity()
    engine.close()


def test_a_step_of_few_tokens_is_one_of_decoding_ones(models: tuple[Any, LoadedModel]) -> None:
    theirs, loaded = models
    batch = [ids[:length] for ids, length in zip(prompts(), (5, 9, 20, 70) if ON_GPU else (5, 9), strict=False)]
    engine = make_engine(loaded, {})
    executor: Any = engine._loop._executor

    def no_prompts(*_: Any) -> Any:
        raise AssertionError("a graph was to do")

    executor._mixed = no_prompts
    assert [completion.token_ids for completion in run(engine, batch, True)] == [generate(theirs, ids) for ids in batch]
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
    for _ in range(2 if ON_GPU else 1):  # a cold cache, then a warm one
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


def demanding(prompts: list[tuple[int, ...]]) -> list[Request]:
    """Grammars, forced text, penalties and log-probabilities, and requests without any beside them."""
    count = 40 if ON_GPU else 6
    endless, forcing = (
        Constraint("regex", each) for each in ("[a-z ]+", "[ab](yes|no), of course[cd](, and so on)[e-g]+")
    )
    kinds: list[dict[str, Any]] = [
        {"constraint": endless, "ignore_eos": False},
        {"constraint": forcing},
        {"constraint": forcing, "return_logprob": True, "top_logprobs_num": 2, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.3, "presence_penalty": 0.4},
        {"return_logprob": True, "top_logprobs_num": 2},
        {},
    ]
    return [
        Request(
            input_ids=ids,
            sampling=SamplingParams(
                **{"temperature": 0.8 * (i % 2), "seed": i, "max_new_tokens": count, "ignore_eos": True, **kind}
            ),
        )
        for i, (ids, kind) in enumerate(zip(itertools.cycle(prompts), kinds * (2 if ON_GPU else 1), strict=False))
    ]


def told(completion: Completion) -> tuple[Any, ...]:
    return completion.token_ids, completion.text, completion.finish_reason, completion.num_forced_tokens


# (ahead, together)
ORDERS = [(False, False), (True, False), (True, True), (False, True)] if ON_GPU else [(False, True), (True, True)]


class _Recomputed:
    """Stands for a captured graph: its replay computes the step that was captured, on whatever lies in the inputs."""

    def __init__(self, executor: Any, key: GraphKey) -> None:
        self._executor, self._key, self.num_replays = executor, key, 0

    @property
    def graph(self) -> Any:
        return self

    def replay(self) -> None:
        self.num_replays += 1
        self.logits, self.chosen = self._executor._decode_step(self._key)


def test_a_borrowed_graph_changes_no_token(models: tuple[Any, LoadedModel]) -> None:
    _, loaded = models
    batch = [ids[-5 - number :] for number, ids in enumerate(prompts()[:3])]
    expected = [completion.token_ids for completion in run(make_engine(loaded, {}), batch, at_once=True)]
    for key in (GraphKey(8, 0, False), GraphKey(16, 32, True)):
        engine = make_engine(loaded, {})
        executor: Any = engine._loop._executor
        larger = _Recomputed(executor, key)
        executor._graphs.add(key, larger)
        assert [completion.token_ids for completion in run(engine, batch, at_once=True)] == expected
        assert larger.num_replays
        engine.close()


def test_after_a_rehearsal_no_choice_waits_for_a_kernel(
    models: tuple[Any, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, loaded = models
    engine = Engine(
        loaded.model,
        loaded.tokenizer,
        EngineConfig(pool_tokens=8192),
        Grammars(loaded.tokenizer, loaded.model.vocab_size),
    )
    compiled: list[str] = []
    if ON_GPU:
        for kernel in CHOICE_KERNELS:
            kernel.device_caches.clear()
        monkeypatch.setattr(
            triton.knobs.runtime, "jit_post_compile_hook", lambda *args, fn, **more: compiled.append(fn.name) or False
        )
    engine.rehearse()
    if ON_GPU:  # elsewhere nothing is compiled
        choosing = {kernel.__name__ for kernel in CHOICE_KERNELS}
        assert choosing <= set(compiled)
        compiled.clear()
        batch = demanding([ids[-3:] for ids in prompts()])
        batch += [replace(each, sampling=replace(each.sampling, temperature=1, top_p=0.9, top_k=50)) for each in batch]
        for request in batch:
            engine.submit(request).result()
        assert not choosing & set(compiled)
    engine.close()


@pytest.mark.parametrize("graphs", [True, False] if ON_GPU else [True])
def test_stepping_ahead_changes_no_token(
    models: tuple[Any, LoadedModel], graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With grammars, forced text, penalties and log-probabilities, alone and together; and where masks are late."""
    _, loaded = models
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    batch = demanding([ids[-30:] if ON_GPU else ids[-3:] for ids in prompts()])

    def answers(requests: list[Request], overlap: bool, at_once: bool) -> list[Completion]:
        config = EngineConfig(pool_tokens=8192, overlap=overlap, cuda_graphs=graphs)
        engine = Engine(loaded.model, loaded.tokenizer, config, grammars)
        if at_once:
            done = [handle.result() for handle in [engine.submit(request) for request in requests]]
        else:
            done = [engine.submit(request).result() for request in requests]
        engine.check_integrity()
        engine.close()
        return done

    first, *others = (answers(batch, *order) for order in ORDERS)
    # Beside a request that takes the likeliest token as it is, one whose grammar forces text drops out of the choice.
    few = answers([batch[1], batch[5]], True, True)
    assert [told(completion) for completion in few] == [told(first[1]), told(first[5])]
    late = count_late(monkeypatch)
    few = answers([batch[1], batch[5]], True, True)
    assert [told(completion) for completion in few] == [told(first[1]), told(first[5])]
    assert late
    assert any(completion.num_forced_tokens for completion in first)
    for other in others:
        assert [told(completion) for completion in other] == [told(completion) for completion in first]
        for one, same in zip(first, other, strict=True):
            assert len(one.logprobs) == len(same.logprobs)
            for a, b in zip(one.logprobs, same.logprobs, strict=True):
                assert a.token_id == b.token_id
                assert a.logprob == pytest.approx(b.logprob, abs=2e-3)
                assert a.masked == pytest.approx(b.masked, abs=2e-3)
