"""Strict mode: a request's tokens, and their log-probabilities to the last bit, depend on its prompt and seed only."""

from __future__ import annotations

import random
from typing import Any

import pytest
from device_support import DEVICE
from model_support import random_model
from small_tokenizers import small_tokenizer

from lmnb.errors import UnsupportedModelError
from lmnb.kernels import native
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.prompt_layout import PLAIN, PromptLayout, Section
from lmnb.runtime.request import Completion, Request, SamplingParams
from lmnb.runtime.testing import ByteTokenizer

pytestmark = pytest.mark.timeout(300)

KINDS = [("llama", "float32"), ("llama", "bfloat16"), ("mistral-window", "float32"), ("llama-bias-gqa", "float32")]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(kind))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    kind, dtype = request.param
    folder = tmp_path_factory.mktemp("model")
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1100, "max_position_embeddings": 1024}
    if dtype == "bfloat16":  # what the compiled kernels take, where there are any
        native.prepare()
        sizes.update(head_dim=64)
    random_model(kind, **sizes).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(small_tokenizer("gpt2")._trusted.to_str(), "utf-8")
    return load_model(folder, dtype=dtype, device=DEVICE)


def ids(count: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, 250) for _ in range(count))


STEM = ids(300, 0)  # long enough for shared keys to be read apart where that is allowed


def request(prompt: tuple[int, ...], seed: int, temperature: float, layout: PromptLayout = PLAIN) -> Request:
    sampling = SamplingParams(
        temperature=temperature, seed=seed, max_new_tokens=40, ignore_eos=True, return_logprob=True, top_p=0.95
    )
    return Request(input_ids=prompt, sampling=sampling, layout=layout)


def branches() -> list[Request]:
    """Branches of one stem, two prompts of their own, and a join of caches."""
    asked = [request(STEM + ids(3 + 5 * i, 10 + i), seed=i, temperature=(0.0, 0.8, 1.0)[i % 3]) for i in range(6)]
    asked += [request(ids(5, 30), seed=7, temperature=0.9), request(ids(70, 31), seed=8, temperature=0.9)]
    parts = STEM[:40], ids(30, 40), ids(21, 41), ids(4, 42)
    layout = PromptLayout.of([Section(70, 40, ((0, 40),)), Section(91, 70, ((0, 91),))])
    return [*asked, request(sum(parts, ()), 9, 0.9, layout)]


def bits(completion: Completion) -> list[tuple[int, float | None]]:
    return [(entry.token_id, entry.logprob) for entry in completion.logprobs]


def make_engine(loaded: LoadedModel, **config: Any) -> Engine:
    return Engine(
        loaded.model, loaded.tokenizer, EngineConfig(**{"pool_tokens": 4096, "deterministic": True, **config})
    )


def end(engine: Engine) -> None:
    engine.check_integrity()
    engine.close()


def test_bits_depend_on_prompt_and_seed_only(loaded: LoadedModel) -> None:
    asked = branches()
    engine = make_engine(loaded)
    expected = []
    for each in asked:  # each alone, on a cold cache
        assert engine.flush_cache()
        expected.append(bits(engine.submit(each).result()))
    warm = [bits(engine.submit(each).result()) for each in asked]
    assert warm == expected
    end(engine)
    configs: list[dict[str, Any]] = [
        {},
        {"overlap": True},
        {"prefill_chunk": 16},
        {"prefill_chunk": 7, "max_running": 4},
        {"prefix_cache": False},
        {"pool_tokens": 420, "prefill_chunk": 32},
        {"jump_forward": False, "min_shared_tokens": 1},
    ]
    for config in configs:
        engine = make_engine(loaded, **config)
        for number in range(2):  # cold, then warm
            order = random.Random(number).sample(range(len(asked)), len(asked))
            handles = {i: engine.submit(asked[i]) for i in order}
            done = {i: handle.result() for i, handle in handles.items()}
            differing = [i for i in order if bits(done[i]) != expected[i]]
            assert not differing, (config, number)
            if config.get("pool_tokens"):
                assert sum(completion.num_preemptions for completion in done.values()) > 0
        end(engine)


def test_models_that_cannot_be_strict_are_refused() -> None:
    class Loose(FakeModel):
        can_be_strict = False

    tokenizer = ByteTokenizer()
    with pytest.raises(UnsupportedModelError, match="deterministic=True"):
        Engine(Loose(tokenizer.vocab_size), tokenizer, EngineConfig(deterministic=True))


@pytest.mark.model
def test_the_embedded_model_is_strict_too() -> None:
    """With the integers of its file, and the compiled kernels, where there are any."""
    native.prepare()
    loaded = load_model()
    asked = [request(STEM + ids(3 + 5 * i, 10 + i), seed=i, temperature=(0.0, 0.9)[i % 2]) for i in range(4)]
    engine = make_engine(loaded)
    expected = []
    for each in asked:
        assert engine.flush_cache()
        expected.append(bits(engine.submit(each).result()))
    end(engine)
    engine = make_engine(loaded, prefill_chunk=50)
    for _ in range(2):
        done = [handle.result() for handle in [engine.submit(each) for each in asked]]
        assert [bits(completion) for completion in done] == expected
    end(engine)
