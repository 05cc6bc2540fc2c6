"""One seed, one text: alone or beside others, cold or warm, in any dtype and on stored integers (embedded model).

That is strict mode's promise. On a CPU the compiled kernels keep it anyway, on stored integers; where torch multiplies,
its library does so on some processors and not on others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from device_support import ON_GPU

from lmnb.kernels import native
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.loading import load_model
from lmnb.runtime.request import Request, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["float32", "bfloat16", "auto"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    is_float32 = request.param == "float32"
    loaded = request.getfixturevalue("embedded_float32") if is_float32 else load_model(dtype=request.param)
    is_promised = not ON_GPU and request.param == "auto" and native.prepare() is not None
    config = EngineConfig(pool_tokens=8192, deterministic=not is_promised)
    engine = Engine(loaded.model, loaded.tokenizer, config)
    yield engine
    engine.close()


def ask(engine: Engine, text: str, tokens: int = 32, **sampling: float | int | None) -> Request:
    ids = engine._loop.requests._tokenizer.encode(text, trusted=True)
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    return Request(input_ids=tuple(ids), sampling=params)


@pytest.mark.parametrize(("seed", "temperature"), [(1, 0.0), (2, 0.8), (3, 1.0)])
def test_text_is_the_same_alone_and_in_company(engine: Engine, seed: int, temperature: float) -> None:
    question = f"<|im_start|>user\nTell me about place number {seed}.<|im_end|>\n<|im_start|>assistant\n"
    request = ask(engine, question, seed=seed, temperature=temperature)
    assert engine.flush_cache()
    alone = engine.submit(request).result().token_ids
    assert engine.flush_cache()
    mates = [engine.submit(ask(engine, "Once upon a time " * (3 * i + 1), temperature=1.0)) for i in range(3)]
    beside = engine.submit(request).result().token_ids
    for mate in mates:
        mate.result()
    twins = [engine.submit(request) for _ in range(3)]
    assert beside == alone
    assert all(twin.result().token_ids == alone for twin in twins)


@pytest.mark.skipif(native.prepare() is None, reason="about the compiled kernels, which cannot be built here")
def test_log_probabilities_are_the_same_to_the_last_bit(engine: Engine) -> None:
    """Cold and warm, alone and beside others, and as one of many branches of a long prefix."""
    if engine.status().dtype == "float32":
        pytest.skip("the compiled kernels compute in bfloat16")
    stem = "A list of towns, each with its river and its market day. " * 45  # 600 tokens
    requests = [
        ask(engine, f"{stem}Town {i} lies", 12, temperature=0, return_logprob=True, top_logprobs_num=3)
        for i in range(12)
    ]
    assert len(requests[0].input_ids) > 550
    assert engine.flush_cache()
    cold = engine.submit(requests[0]).result()
    assert len(cold.logprobs) == 12
    warm = engine.submit(requests[0]).result()
    branches = [handle.result() for handle in [engine.submit(request) for request in requests]]
    assert engine.flush_cache()
    together = [handle.result() for handle in [engine.submit(request) for request in requests]]
    for other in (warm, branches[0], together[0]):
        assert other.token_ids == cold.token_ids
        assert other.logprobs == cold.logprobs
    assert [branch.logprobs for branch in together] == [branch.logprobs for branch in branches]
