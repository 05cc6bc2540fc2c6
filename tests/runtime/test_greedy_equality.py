"""Greedy tokens on the embedded model equal those of transformers' own `generate`, whatever the engine does.

float32. 24 prompts, 64 tokens each; 8 of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.model_source import resolve_source
from lmnb.runtime.request import Completion, Request, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_TOKENS = 64
TOPICS = [
    "the capital of France", "how bread rises", "a lighthouse keeper", "prime numbers", "the colour of the sky",
    "a dragon who bakes", "learning to swim", "three kinds of clouds", "why cats purr", "a letter to a friend",
    "the first computer", "planting tomatoes", "a train at night", "how to tie a knot", "the moon and the tides",
    "an old clock", "making tea", "the sound of rain", "a lost key", "writing good code", "small birds in winter",
    "a market in the morning", "the speed of light", "what a verb is",
]  # fmt: skip
FORMS = [
    "Once upon a time there was a story about {}, and it went like this:",
    "<|im_start|>user\nTell me about {}.<|im_end|>\n<|im_start|>assistant\n",
    "Q: What should everybody know about {}?\nA:",
]


@pytest.fixture(scope="module")
def loaded(embedded_float32: LoadedModel) -> LoadedModel:
    return embedded_float32


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    texts = [FORMS[i % 3].format(topic) for i, topic in enumerate(TOPICS)]
    return [loaded.tokenizer.encode(text, trusted=True) for text in texts]


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates, all prompts as one batch, padded on the left."""
    from transformers import AutoModelForCausalLM

    folder, _ = resolve_source(None)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=None, pad_token_id=0
    )
    tokens: list[list[int]] = out[:, width:].tolist()
    return tokens


def run(engine: Engine, prompts: list[list[int]], batch: int) -> list[Completion]:
    done: list[Completion] = []
    for start in range(0, len(prompts), batch):
        handles = [
            engine.submit(
                Request(
                    input_ids=tuple(ids),
                    sampling=SamplingParams(temperature=0, max_new_tokens=NUM_TOKENS, ignore_eos=True),
                )
            )
            for ids in prompts[start : start + batch]
        ]
        done += [handle.result() for handle in handles]
    return done


@pytest.fixture
def engine(request: pytest.FixtureRequest, loaded: LoadedModel) -> Iterator[Engine]:
    engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(**{"pool_tokens": 8192, **request.param}))
    yield engine
    engine.check_integrity()
    engine.close()


def agree(got: list[Completion], expected: list[list[int]]) -> None:
    differing = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if list(a.token_ids) != b]
    assert not differing, f"prompts {differing} differ from transformers"


@pytest.mark.parametrize("engine", [{}], indirect=True)
def test_alone_on_a_cold_cache_and_together_on_a_warm_one(
    engine: Engine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    cold = run(engine, prompts[:8], batch=1)
    agree(cold, expected[:8])
    warm = run(engine, prompts[:8], batch=8)
    agree(warm, expected[:8])
    assert all(b.cached_tokens == b.prompt_tokens - 1 for b in warm)


@pytest.mark.parametrize("engine", [{}, {"prefill_chunk": 16}], indirect=True, ids=["whole", "chunks of 16"])
def test_in_batches_of_8_on_a_cold_cache(engine: Engine, prompts: list[list[int]], expected: list[list[int]]) -> None:
    agree(run(engine, prompts, batch=8), expected)


@pytest.mark.parametrize("engine", [{"pool_tokens": 480}], indirect=True)
def test_with_so_little_memory_that_requests_are_preempted(
    engine: Engine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    done = run(engine, prompts, batch=24)
    agree(done, expected)
    assert sum(completion.num_preemptions for completion in done) > 0
