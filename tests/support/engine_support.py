"""What the engine tests share: an engine on the fake model, and the plain loop it must agree with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from device_support import DEVICE

from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.request import Request, SamplingParams
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()


@contextmanager
def fake_engine(
    *, step_seconds: float = 0.0, grammars: Any = None, context_tokens: int = 4096, **config: Any
) -> Iterator[Engine]:
    """An engine that is checked slot by slot when the test is over."""
    model = FakeModel(TOKENIZER.vocab_size, step_seconds=step_seconds, context_tokens=context_tokens, device=DEVICE)
    engine = Engine(model, TOKENIZER, EngineConfig(**{"pool_tokens": 2048, **config}), grammars)
    try:
        yield engine
        if engine.closed:
            return  # the test closed it, or made it die
        engine.check_integrity()
        status = engine.status()
        assert status.running == status.waiting == 0
        assert status.free_tokens + status.cached_tokens == status.pool_tokens
    finally:
        engine.close()


def fake_of(engine: Engine) -> FakeModel:
    model = engine._loop.model
    assert isinstance(model, FakeModel)
    return model


def prompt(text: str, max_new_tokens: int = 16, **sampling: Any) -> Request:
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **sampling, "max_new_tokens": max_new_tokens})
    return Request(input_ids=tuple(TOKENIZER.encode(text)), sampling=params)


def greedy(text: str, count: int) -> list[int]:
    """What the fake model says after `text`, computed without any engine."""
    model = FakeModel(TOKENIZER.vocab_size)
    ids = TOKENIZER.encode(text)
    for _ in range(count):
        ids = [*ids, int(model.predict(ids).argmax())]
    return ids[len(ids) - count :]


def end_of_warm_ups() -> None:
    """Wait until nothing is prepared in the background any more."""
    for thread in threading.enumerate():
        if thread.name == "lmnb-warm-up":
            thread.join(60)
