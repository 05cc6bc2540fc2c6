"""What goes wrong with one request is its own error: the others' tokens stay the same, and the engine lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_support import TOKENIZER, fake_engine, greedy, prompt

from lmnb.errors import GenerationError, OutOfMemoryError
from lmnb.runtime import live_requests, mask_worker
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.llguidance_grammar import LLGuidanceMatcher
from lmnb.runtime.request import Constraint

pytestmark = pytest.mark.usefixtures("step_order")

BAD = "@ the bad one, which is long enough for several chunks of its prompt"
GOOD = ["a good one", "@ the good one with the same beginning", "x"]


def is_bad(tokens: np.ndarray | tuple[int, ...]) -> bool:
    return bytes(int(token) for token in tokens).startswith(b"@ the bad")


def raising(function: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        if when(*args, **options):
            raise RuntimeError("broken on purpose")
        return function(*args, **options)

    return wrapped


def break_submit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    make = live_requests.Sequence
    monkeypatch.setattr(live_requests, "Sequence", raising(make, lambda request, *_: is_bad(request.input_ids)))


def break_queueing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = engine._loop.scheduler
    monkeypatch.setattr(scheduler, "add", raising(scheduler.add, lambda sequence: is_bad(sequence.tokens)))


def break_lookup(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = engine._loop.scheduler.cache
    monkeypatch.setattr(cache, "peek", raising(cache.peek, is_bad))


def break_prefill(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = engine._loop.scheduler.rows
    row = maker._add_row

    def second_chunk(rows: list[Any], sequence: Any, count: int) -> Any:
        result = row(rows, sequence, count)
        if is_bad(sequence.tokens) and sequence.num_computed > 0:
            raise RuntimeError("broken on purpose")
        return result

    monkeypatch.setattr(maker, "_add_row", second_chunk)


def break_tokens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = engine._loop.requests
    tell_first = raising(requests._tell_first, lambda sequence: is_bad(sequence.tokens[: sequence.num_prompt]))
    monkeypatch.setattr(requests, "_tell_first", tell_first)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("damage", [break_submit, break_queueing, break_lookup, break_prefill, break_tokens])
def test_a_request_that_breaks_the_engine_fails_alone(
    damage: Callable[[Engine, pytest.MonkeyPatch], None], overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_engine(overlap=overlap, prefill_chunk=16) as engine:
        damage(engine, monkeypatch)
        texts = [GOOD[0], BAD, *GOOD[1:], BAD]
        handles = [engine.submit(prompt(text, 8)) for text in texts]
        for text, handle in zip(texts, handles, strict=True):
            if text == BAD:
                with pytest.raises(GenerationError, match="broken on purpose"):
                    handle.result(timeout=20)
            else:
                assert list(handle.result(timeout=20).token_ids) == greedy(text, 8)
        assert not engine.closed


@pytest.mark.timeout(60)
def test_a_grammar_that_breaks_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = Constraint("regex", "abc[0-9]{4}")
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size)) as engine:
        loop = engine._loop
        monkeypatch.setattr(loop.requests._jumps, "jump", raising(loop.requests._jumps.jump, lambda *_: True))
        with pytest.raises(GenerationError, match="broken on purpose"):
            engine.submit(prompt("x", 8, constraint=constraint)).result(timeout=20)
        monkeypatch.undo()
        assert engine.submit(prompt("x", 8, constraint=constraint)).result(timeout=20).text.startswith("abc")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("asks", [{}, {"return_logprob": True}])
@pytest.mark.parametrize("overlap", [False, True])
def test_an_end_that_breaks_is_told(overlap: bool, asks: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size), overlap=overlap) as engine:
        requests = engine._loop.requests
        is_cut = raising(requests._is_cut, lambda sequence: sequence.matcher is not None)
        monkeypatch.setattr(requests, "_is_cut", is_cut)
        for regex in ("abc", "[0-9]{4}"):
            broken = engine.submit(prompt("x", 8, constraint=Constraint("regex", regex), **asks))
            other = engine.submit(prompt("z", 8))
            with pytest.raises(GenerationError, match="broken on purpose"):
                broken.result(timeout=20)
            assert list(other.result(timeout=20).token_ids) == greedy("z", 8)


@pytest.mark.timeout(60)
def test_a_stop_in_a_constrained_text_where_the_model_has_no_end_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOKENIZER, "eos_ids", frozenset())
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size)) as engine:
        asked = prompt("x", 8, constraint=Constraint("regex", "[0-9]{3}abc"), stop=("b",))
        done = engine.submit(asked).result(timeout=20)
        assert (done.text[3:], done.finish_reason, done.is_cut) == ("a", "stop", True)


@pytest.mark.timeout(60)
def test_an_error_of_no_one_request_fails_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_engine() as engine:
        scheduler = engine._loop.scheduler
        monkeypatch.setattr(scheduler, "_prefill_rows", raising(scheduler._prefill_rows, lambda *_: True))
        handle = engine.submit(prompt("x", 8))
        with pytest.raises(GenerationError, match="broken on purpose"):
            handle.result(timeout=20)
        monkeypatch.undo()
        assert list(engine.submit(prompt("x", 8)).result(timeout=20).token_ids) == greedy("x", 8)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_mask_that_cannot_be_made_fails_alone(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    bad, good = Constraint("regex", "b[0-9]{9}"), Constraint("regex", "[a-z]{6}")

    def fill(matcher: Any, bitmask: np.ndarray, original: Callable[..., bool] = LLGuidanceMatcher.fill) -> bool:
        if not matcher.fork().accept(ord("0")) or matcher.fork().accept(ord("a")):
            return original(matcher, bitmask)
        raise RuntimeError("broken on purpose")

    with fake_engine(grammars=grammars, overlap=overlap, jump_forward=False) as engine:
        engine.submit(prompt("w", 9, constraint=bad)).result(timeout=20)  # both are compiled
        engine.submit(prompt("w", 9, constraint=good)).result(timeout=20)
        alone = engine.submit(prompt("x", 6, constraint=good)).result(timeout=20)
        monkeypatch.setattr(LLGuidanceMatcher, "fill", fill)
        broken = engine.submit(prompt("y", 9, constraint=bad))
        others = [engine.submit(prompt("x", 6, constraint=good)), engine.submit(prompt("z", 8))]
        with pytest.raises(GenerationError, match="broken on purpose"):
            broken.result(timeout=20)
        assert others[0].result(timeout=20).token_ids == alone.token_ids
        assert list(others[1].result(timeout=20).token_ids) == greedy("z", 8)


@pytest.mark.timeout(60)
def test_masks_need_no_more_threads_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have no more: then the step fails, and none waits for a thread that never was."""
    start, limit = threading.Thread.start, 0

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("lmnb-masks") and int(thread.name[-1]) >= limit:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(mask_worker.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(threading.Thread, "start", limited)
    asked = prompt("x", 6, constraint=Constraint("regex", "[a-z]{6}"))
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size)) as engine:
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match=r"may have no more threads.*raise its limits \(ulimit -v"):
                engine.submit(asked).result(timeout=20)
        for limit in (1, 4):
            assert engine.submit(asked).result(timeout=20).finish_reason == "stop"
            assert len(engine._loop._masks._threads) == limit
