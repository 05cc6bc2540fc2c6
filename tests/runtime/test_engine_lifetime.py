"""What an engine holds goes when it is closed, or when nobody holds it: a kernel lives long, and loads many models."""

from __future__ import annotations

import gc
import weakref

import pytest
from engine_support import TOKENIZER, prompt

from lmnb.errors import ArgumentError, EngineClosedError
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.request import Constraint, Request, SamplingParams

pytestmark = [pytest.mark.usefixtures("step_order"), pytest.mark.timeout(60)]

REQUESTS = {
    "many tokens": prompt("Hello", 5),
    "one token": prompt("Hello", 1),
    "a score": Request(input_ids=(1, 2, 3), logprob_start=1, sampling=SamplingParams(max_new_tokens=0)),
    "a constraint": prompt("Hello", 5, constraint=Constraint("regex", "[a-z]{5}")),
}


def make() -> tuple[Engine, weakref.ref[FakeModel]]:
    model = FakeModel(TOKENIZER.vocab_size)
    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    return Engine(model, TOKENIZER, EngineConfig(pool_tokens=512), grammars), weakref.ref(model)


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_engine_that_is_dropped_after_a_request_ends_its_thread(kind: str) -> None:
    engine, model = make()
    thread = engine._thread
    engine.submit(REQUESTS[kind]).result(timeout=20)
    engine.status()  # the step that ended the request is over
    del engine
    gc.collect()
    thread.join(timeout=30)
    assert not thread.is_alive()
    gc.collect()
    assert model() is None


def test_a_closed_engine_lets_go_of_its_model_though_it_is_held() -> None:
    """States of a program hold the engine that they ran on."""
    engine, model = make()
    handle = engine.submit(prompt("Hello", 5))
    handle.result(timeout=20)
    engine.close()
    gc.collect()
    assert model() is None
    assert engine.closed
    with pytest.raises(EngineClosedError):
        engine.submit(prompt("Hello"))
    with pytest.raises(ArgumentError):
        engine.submit(Request(input_ids=(10**6,)))
    with pytest.raises(EngineClosedError):
        engine.status()
    assert "KV pool of 512 tokens" in str(engine.too_long())


def test_a_question_that_ends_the_thread_is_answered() -> None:
    engine, _ = make()

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        engine._call(leave)
    engine._thread.join(timeout=30)
    assert engine.closed
    with pytest.raises(EngineClosedError, match="the engine died: 3"):
        engine.status()
