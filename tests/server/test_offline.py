"""The offline engine: SGLang's call, answered in this process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from context_support import fake_runtime
from patience import until

from lmnb.errors import ArgumentError, EngineClosedError, GrammarError
from lmnb.server.offline import Engine

GREEDY = {"temperature": 0.0, "max_new_tokens": 5, "ignore_eos": True}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with fake_runtime() as runtime, Engine(runtime=runtime) as made:
        yield made


def test_the_order_of_arguments() -> None:
    assert list(inspect.signature(Engine.generate).parameters)[1:] == [
        *("prompt", "sampling_params", "input_ids", "image_data", "audio_data", "video_data", "return_logprob"),
        *("logprob_start_len", "top_logprobs_num", "token_ids_logprob", "lora_path", "custom_logit_processor"),
        *("return_hidden_states", "stream"),
    ]


def test_one_and_many(engine: Engine) -> None:
    one = engine.generate("Hello", GREEDY)
    assert set(one) == {"text", "output_ids", "meta_info"}
    assert len(one["output_ids"]) == one["meta_info"]["completion_tokens"] == 5
    many = engine.generate(["Hello", "world"], [GREEDY, {**GREEDY, "max_new_tokens": 2}])
    assert [len(result["output_ids"]) for result in many] == [5, 2]
    assert many[0]["text"] == one["text"]
    ids = list(engine.runtime.encode_prompt("Hello"))
    assert engine.generate(input_ids=ids, sampling_params=GREEDY)["text"] == one["text"]
    assert len(engine.generate("Hello", {**GREEDY, "n": 3, "temperature": 1.0})) == 3
    assert engine.get_server_info()["prompt_tokens"] > 0
    assert engine.flush_cache() is True


def test_log_probabilities_and_constraints(engine: Engine) -> None:
    result = engine.generate("ab", {"regex": "[0-9]{3}"}, return_logprob=True, logprob_start_len=0, top_logprobs_num=2)
    assert result["text"].isdigit()
    meta = result["meta_info"]
    assert [len(meta[key]) for key in ("input_token_logprobs", "output_token_logprobs")] == [2, 3]
    both = engine.generate(["a", "b"], GREEDY, return_logprob=[True, True])
    assert all("output_token_logprobs" in item["meta_info"] for item in both)


def test_streams_grow(engine: Engine) -> None:
    whole = engine.generate("Hello", GREEDY)["text"]
    texts = [item["text"] for item in engine.generate("Hello", GREEDY, stream=True)]
    assert texts[-1] == whole
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    left = engine.generate("Hello", {**GREEDY, "max_new_tokens": 4000}, stream=True)
    next(left)
    left.close()
    until(lambda: not engine.runtime.status().running)
    assert engine.runtime.status().running == 0


def test_async(engine: Engine) -> None:
    async def main() -> tuple[Any, list[str]]:
        results = await asyncio.gather(*(engine.async_generate("Hello", GREEDY) for _ in range(3)))
        stream = await engine.async_generate("Hello", sampling_params=GREEDY, stream=True)
        return results, [item["text"] async for item in stream]

    results, texts = asyncio.run(main())
    assert {result["text"] for result in results} == {texts[-1]}


def test_a_cancelled_task_cancels_its_requests() -> None:
    with fake_runtime(step_seconds=0.005) as runtime, Engine(runtime=runtime) as engine:

        async def main() -> None:
            task = asyncio.create_task(engine.async_generate("Hello", {**GREEDY, "max_new_tokens": 3000}))
            while not runtime.status().running:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        until(lambda: not runtime.status().running)
        assert runtime.status().generated_tokens < 3000


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prompt": "a", "input_ids": [1]},
        {"prompt": "a", "sampling_params": {"temprature": 1}},
        {"prompt": "a", "sampling_params": {"regex": "("}},
        {"prompt": "a", "image_data": "cat.png"},
        {"prompt": ["a", "b"], "return_logprob": [True, False]},
        {"prompt": ["a", "b"], "sampling_params": [{}]},
    ],
)
def test_what_cannot_work_is_refused(engine: Engine, arguments: dict[str, Any]) -> None:
    with pytest.raises((ArgumentError, GrammarError)):
        engine.generate(**arguments)


def test_it_shuts_down_only_what_it_has_loaded() -> None:
    with fake_runtime() as runtime:
        Engine(runtime=runtime).shutdown()
        assert not runtime.closed
        runtime.shutdown()
        with pytest.raises(EngineClosedError):
            Engine(runtime=runtime).generate("a")
        with pytest.raises(ArgumentError, match="model"):
            Engine(runtime=runtime, model="smollm2")
        with pytest.raises(ArgumentError, match="generate takes"):
            asyncio.run(Engine(runtime=runtime).async_generate(wrong=1))
