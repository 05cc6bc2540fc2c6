"""The engine on the fake model: same tokens whatever the batch, the cache and the memory do."""

from __future__ import annotations

import gc
import random
import threading
from typing import Any

import pytest
from engine_support import TOKENIZER, fake_engine, fake_of, greedy, prompt

from lmnb.errors import ArgumentError, EngineClosedError, GenerationError, GrammarError, RequestTooLongError
from lmnb.runtime import scheduler
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.events import CacheEvent
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.request import Constraint, Event, FinishEvent, Request, SamplingParams, TokenEvent

pytestmark = pytest.mark.usefixtures("step_order")

STEM = "A long common beginning, longer than any chunk that the small engines below compute. "
PROMPTS = [STEM + tail for tail in ("one", "two and more", "", "three", "one", "one!")] + ["Quite another text", "x"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_running": 1},
        {"prefill_chunk": 16},
        {"prefill_chunk": 5, "max_running": 3},
        {"pool_tokens": 260, "prefill_chunk": 32},
        {"pool_tokens": 160, "prefill_chunk": 16},
        {"prefix_cache": False},
        {"prefix_cache": False, "pool_tokens": 260},
        {"min_shared_tokens": 1},
        {"overlap": True},
        {"overlap": True, "prefill_chunk": 5, "max_running": 3},
        {"overlap": True, "pool_tokens": 160, "prefill_chunk": 16},
        {"overlap": True, "prefix_cache": False, "pool_tokens": 260},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_batch_cache_chunks_or_memory(config: dict[str, int]) -> None:
    with fake_engine(**config) as engine:
        for _ in range(2):  # cold, then warm
            handles = [engine.submit(prompt(text, 24)) for text in PROMPTS]
            for text, handle in zip(PROMPTS, handles, strict=True):
                completion = handle.result()
                assert list(completion.token_ids) == greedy(text, 24), text
                assert completion.finish_reason == "length"
                assert completion.prompt_tokens == len(TOKENIZER.encode(text))
        assert engine.status().generated_tokens == 2 * 24 * len(PROMPTS)


@pytest.mark.timeout(60)
def test_a_small_pool_preempts_and_loses_nothing() -> None:
    with fake_engine(pool_tokens=120, prefill_chunk=32) as engine:
        texts = [f"{i} says" for i in range(8)]
        handles = [engine.submit(prompt(text, 60)) for text in texts]
        completions = [handle.result() for handle in handles]
        assert [list(c.token_ids) for c in completions] == [greedy(text, 60) for text in texts]
        assert sum(c.num_preemptions for c in completions) > 0


def test_requests_of_one_batch_compute_their_common_prefix_once() -> None:
    with fake_engine(prefill_chunk=32) as engine:
        model = fake_of(engine)
        texts = [STEM + chr(ord("A") + i) for i in range(20)]
        handles = [engine.submit(prompt(text, 4)) for text in texts]
        for handle in handles:
            handle.result()
        own = sum(len(TOKENIZER.encode(text)) - len(TOKENIZER.encode(STEM)) for text in texts)
        decoded = 20 * 3
        assert model.num_tokens == len(TOKENIZER.encode(STEM)) + own + decoded


def test_cached_tokens_are_exact() -> None:
    with fake_engine() as engine:
        first = engine.submit(prompt("0123456789" * 10, 50)).result()
        assert first.cached_tokens == 0
        again = engine.submit(prompt("0123456789" * 10, 1)).result()
        assert again.cached_tokens == 99  # one token must be computed
        turn = Request(
            input_ids=tuple(TOKENIZER.encode("0123456789" * 10)) + first.token_ids + tuple(TOKENIZER.encode("next")),
            sampling=SamplingParams(max_new_tokens=1),
        )
        assert engine.submit(turn).result().cached_tokens == 149  # all but the last sampled token


def test_zero_new_tokens_only_fills_the_cache() -> None:
    with fake_engine() as engine:
        done = engine.submit(prompt(STEM, 0)).result()
        assert (done.token_ids, done.text, done.finish_reason) == ((), "", "length")
        assert engine.submit(prompt(STEM + "more", 1)).result().cached_tokens == len(TOKENIZER.encode(STEM))


def test_events_concatenate_to_the_text_and_end_with_a_finish() -> None:
    with fake_engine() as engine:
        handle = engine.submit(prompt("Hello", 40))
        events = list(handle)
        *tokens, finish = events
        assert isinstance(finish, FinishEvent)
        assert all(isinstance(event, TokenEvent) for event in tokens)
        assert "".join(event.text for event in tokens if isinstance(event, TokenEvent)) == finish.completion.text
        ids = [id for event in tokens if isinstance(event, TokenEvent) for id in event.token_ids]
        assert tuple(ids) == finish.completion.token_ids
        assert finish.completion.text == TOKENIZER.decode(finish.completion.token_ids)
        assert handle.result() is finish.completion


def test_events_can_go_to_a_callback() -> None:
    events: list[Event] = []
    with fake_engine() as engine:
        completion = engine.submit(prompt("Hello", 5), events.append).result()
    assert isinstance(events[-1], FinishEvent)
    assert events[-1].completion is completion


def test_seeds_make_draws_independent_of_batch_mates() -> None:
    def sample(engine: object, text: str, seed: int | None) -> object:
        return engine.submit(prompt(text, 24, temperature=1.0, seed=seed))  # type: ignore[attr-defined]

    with fake_engine() as engine:
        alone = sample(engine, STEM, 7).result()  # type: ignore[attr-defined]
        mates = [sample(engine, f"{i}" + STEM, None) for i in range(5)]
        beside = sample(engine, STEM, 7).result()  # type: ignore[attr-defined]
        other = sample(engine, STEM, 8).result()  # type: ignore[attr-defined]
        for mate in mates:
            mate.result()  # type: ignore[attr-defined]
        assert alone.token_ids == beside.token_ids != other.token_ids
        free = {sample(engine, STEM, None).result().token_ids for _ in range(3)}  # type: ignore[attr-defined]
        assert len(free) == 3


def test_cancel_keeps_what_was_said_and_frees_the_rest() -> None:
    with fake_engine(step_seconds=0.002) as engine:
        handle = engine.submit(prompt("Hello", 2000))
        events = iter(handle)
        seen = [next(events) for _ in range(5)]
        handle.cancel()
        seen += list(events)
        completion = handle.result()
        assert completion.finish_reason == "cancelled"
        assert 5 <= len(completion.token_ids) < 2000
        assert "".join(e.text for e in seen if isinstance(e, TokenEvent)) == completion.text
        assert list(completion.token_ids) == greedy("Hello", len(completion.token_ids))
        handle.cancel()  # too late: nothing happens
        assert engine.submit(prompt("next", 3)).result().finish_reason == "length"


def test_cancel_reaches_waiting_requests() -> None:
    with fake_engine(step_seconds=0.002, max_running=1) as engine:
        running = engine.submit(prompt("first", 200))
        waiting = engine.submit(prompt("second", 200))
        waiting.cancel()
        assert waiting.result(timeout=30).finish_reason == "cancelled"
        running.cancel()
        running.result()


def test_a_failing_step_fails_its_requests_and_nothing_else() -> None:
    with fake_engine() as engine:
        fake_of(engine).fail_next = RuntimeError("out of memory, say")
        failing = engine.submit(prompt("Hello", 5))
        with pytest.raises(GenerationError) as caught:
            failing.result()
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert list(engine.submit(prompt("Hello", 5)).result().token_ids) == greedy("Hello", 5)


def test_closing_fails_what_is_unfinished_and_what_comes_later() -> None:
    with fake_engine(step_seconds=0.002) as engine:
        handle = engine.submit(prompt("Hello", 2000))
        threading.Timer(0.05, engine.close).start()
        with pytest.raises(EngineClosedError):
            handle.result(timeout=30)
        engine.close()
        with pytest.raises(EngineClosedError, match="closed"):
            engine.submit(prompt("Hello"))
        with pytest.raises(EngineClosedError):
            engine.status()


def test_two_engines_live_side_by_side_and_can_be_built_again() -> None:
    with fake_engine() as first, fake_engine() as second:
        a, b = first.submit(prompt("Hello", 30)), second.submit(prompt("Hello", 30))
        assert a.result().token_ids == b.result().token_ids
        first.close()
        assert second.submit(prompt("Hello", 3)).result().finish_reason == "length"
    with fake_engine() as again:
        assert list(again.submit(prompt("Hello", 3)).result().token_ids) == greedy("Hello", 3)


def test_an_engine_that_is_dropped_ends_its_thread() -> None:
    engine = Engine(FakeModel(TOKENIZER.vocab_size), TOKENIZER)
    thread = engine._thread
    del engine
    gc.collect()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_bug_in_the_loop_reaches_every_waiting_request() -> None:
    with fake_engine(step_seconds=0.002) as engine:
        handle = engine.submit(prompt("Hello", 2000))

        def explode() -> None:
            raise MemoryError("no room left")

        engine._loop.feed.announce = explode  # type: ignore[method-assign]
        with pytest.raises(EngineClosedError, match="no room left"):
            handle.result(timeout=30)
        with pytest.raises(EngineClosedError):
            engine.submit(prompt("Hello"))


def test_prompt_log_probabilities_are_the_models_own_whatever_is_cached() -> None:
    ids = tuple(TOKENIZER.encode(STEM + "The end"))
    with fake_engine(prefill_chunk=16) as engine:
        expected = [float(fake_of(engine).predict(list(ids[:i])).log_softmax(-1)[ids[i]]) for i in range(1, len(ids))]
        for start in (0, 1, len(ids) - 4, len(ids) - 1):
            for _ in range(2):
                request = Request(input_ids=ids, sampling=SamplingParams(max_new_tokens=0), logprob_start=start)
                entries = engine.submit(request).result().input_logprobs
                assert [entry.token_id for entry in entries] == list(ids[start:])
                got = [entry.logprob for entry in entries]
                if start == 0:
                    assert got.pop(0) is None
                assert got == pytest.approx(expected[max(start - 1, 0) :], abs=1e-4)


def test_bad_requests_are_refused_at_once() -> None:
    with fake_engine(pool_tokens=64) as engine:
        with pytest.raises(ArgumentError, match="empty"):
            engine.submit(Request(input_ids=()))
        with pytest.raises(ArgumentError, match="token ids"):
            engine.submit(Request(input_ids=(10**6,)))
        with pytest.raises(RequestTooLongError, match="pool of 64 tokens"):
            engine.submit(prompt("x" * 65))
        with pytest.raises(ArgumentError, match="logprob_start"):
            engine.submit(Request(input_ids=(1, 2), logprob_start=2))
    with fake_engine(context_tokens=32) as engine, pytest.raises(RequestTooLongError, match="context of 32"):
        engine.submit(prompt("x" * 33))


def test_generation_stops_where_the_context_does() -> None:
    with fake_engine(context_tokens=32) as engine:
        completion = engine.submit(prompt("x" * 30, 100)).result()
        assert completion.finish_reason == "length"
        assert len(completion.token_ids) == 3  # two that fit, and one that needs no slot


def test_constraints_need_grammars() -> None:
    with fake_engine() as engine, pytest.raises(GrammarError, match="without grammars"):
        engine.submit(prompt("x", constraint=Constraint("regex", "a+")))


def test_flush_waits_for_no_one_and_refuses_while_busy() -> None:
    with fake_engine(step_seconds=0.002) as engine:
        handle = engine.submit(prompt("Hello", 2000))
        next(iter(handle))
        assert engine.flush_cache() is False
        handle.cancel()
        handle.result()
        assert engine.flush_cache() is True
        status = engine.status()
        assert status.free_tokens == status.pool_tokens
        assert engine.submit(prompt("Hello", 1)).result().cached_tokens == 0


def test_cache_events_are_complete_and_in_order() -> None:
    heard: list[CacheEvent] = []
    with fake_engine(pool_tokens=130) as engine:
        stop = engine.subscribe(heard.extend)
        for text in PROMPTS:
            engine.submit(prompt(text, 8)).result()
        snapshot = engine.snapshot()
        recorded = engine.cache_events()
        assert [event.seq for event in recorded] == list(range(len(recorded)))
        assert heard == recorded[: len(heard)]
        assert snapshot.seq == recorded[-1].seq
        assert sum(len(node.token_ids) for node in snapshot.nodes) == engine.status().cached_tokens
        assert {"insert", "hit", "split", "evict"} <= {event.kind for event in recorded}
        assert engine.cache_events(since_seq=5) == recorded[5:]
        stop()
        count = len(heard)
        engine.submit(prompt("after", 2)).result()
        assert len(heard) == count


def test_asking_again_cuts_no_node() -> None:
    with fake_engine(prefill_chunk=16) as engine:
        engine.submit(prompt(STEM, 0)).result()
        for _ in range(2):
            engine.submit(prompt(STEM, 1)).result()
            ids = tuple(TOKENIZER.encode(STEM))
            scored = Request(input_ids=ids, sampling=SamplingParams(max_new_tokens=0), logprob_start=20)
            assert engine.submit(scored).result().cached_tokens == 19
        assert [node.token_ids for node in engine.snapshot().nodes] == [ids]


def test_a_cached_prompt_that_fills_the_pool_can_be_asked_again() -> None:
    with fake_engine(pool_tokens=64) as engine:
        for _ in range(3):
            assert len(engine.submit(prompt("x" * 64, 1)).result(timeout=30).token_ids) == 1


def test_a_request_that_waits_for_room_is_one_hit() -> None:
    with fake_engine(pool_tokens=200) as engine:
        engine.submit(prompt(STEM, 0)).result()
        start = len(engine.cache_events())
        handles = [engine.submit(prompt(STEM + "x" * 50 + str(i), 20)) for i in range(3)]
        for handle in handles:
            handle.result()
        assert len([event for event in engine.cache_events(start) if event.kind == "hit"]) == 3


def test_owner_comes_back_on_events_and_nodes() -> None:
    with fake_engine() as engine:
        request = prompt("Hello", 2)
        engine.submit(Request(input_ids=request.input_ids, sampling=request.sampling, owner="me")).result()
        assert {node.owner for node in engine.snapshot().nodes} == {"me"}
        assert {event.owner for event in engine.cache_events()} == {"me"}


def test_a_request_overtaken_often_goes_first() -> None:
    with fake_engine(max_running=1, max_bypass=3) as engine:
        engine.submit(prompt(STEM, 1)).result()
        order: list[str] = []

        def note(name: str) -> object:
            return lambda event: order.append(name) if isinstance(event, FinishEvent) else None

        blocker = engine.submit(prompt("blocks", 40))
        lonely = engine.submit(prompt("Nothing like it", 1), note("lonely"))  # type: ignore[arg-type]
        popular = [engine.submit(prompt(STEM + str(i), 1), note("popular")) for i in range(8)]  # type: ignore[arg-type]
        for handle in (blocker, lonely, *popular):
            handle.result()
        assert order.index("lonely") == 3


def test_nobody_looks_through_the_queue_while_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_engine(max_running=2) as engine:
        ours = engine._loop.scheduler
        in_order, looks = ours._in_order, [0]

        def counted() -> list[Any]:
            looks[0] += 1
            return in_order()

        monkeypatch.setattr(ours, "_in_order", counted)
        handles = [engine.submit(prompt(str(i), 30)) for i in range(6)]
        for handle in handles:
            handle.result()
        assert engine.status().num_steps >= 90
        assert looks[0] <= 12


def test_a_long_queue_costs_no_more_than_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_MOST_LOOKED_AT", 8)
    texts = [f"{i * 37 % 120} is not any other one" for i in range(120)]
    with fake_engine(max_running=3, prefill_chunk=64) as engine:
        cache, looks = engine._loop.scheduler.cache, [0]
        peek = cache.peek

        def counted(tokens: Any) -> int:
            looks[0] += 1
            return peek(tokens)

        monkeypatch.setattr(cache, "peek", counted)
        handles = [engine.submit(prompt(text, 2)) for text in texts]
        for text, handle in zip(texts, handles, strict=True):
            assert list(handle.result().token_ids) == greedy(text, 2)
        assert looks[0] <= 8 * engine.status().num_steps


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_leaves_every_slot_accounted_for(seed: int) -> None:
    rng = random.Random(seed)
    with fake_engine(pool_tokens=220, prefill_chunk=24, max_running=6) as engine:
        asked = []
        for _ in range(60):
            text = STEM[: rng.randint(1, len(STEM))] + str(rng.randint(0, 5))
            temperature = rng.choice([0.0, 1.0])
            handle = engine.submit(prompt(text, rng.randint(0, 30), temperature=temperature))
            asked.append((text, temperature, handle))
            if rng.random() < 0.2:
                rng.choice(asked)[2].cancel()
            if rng.random() < 0.1:
                fake_of(engine).fail_next = RuntimeError("a broken kernel")
            if rng.random() < 0.2:
                engine.check_integrity()
        reasons = set()
        for text, temperature, handle in asked:
            try:
                completion = handle.result(timeout=60)
            except GenerationError:
                reasons.add("error")
                continue
            reasons.add(completion.finish_reason)
            if temperature == 0:
                assert list(completion.token_ids) == greedy(text, len(completion.token_ids))
        assert "length" in reasons


@pytest.mark.parametrize("name", ["pool_tokens", "max_running", "prefill_chunk", "min_shared_tokens", "max_bypass"])
def test_impossible_limits_are_named(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be at least 1"):
        Engine(FakeModel(TOKENIZER.vocab_size), TOKENIZER, EngineConfig(**{name: 0}))


def test_results_can_be_awaited_with_a_time_limit() -> None:
    with fake_engine(step_seconds=0.01) as engine:
        handle = engine.submit(prompt("Hello", 3000))
        with pytest.raises(TimeoutError):
            handle.result(timeout=0.2)
        assert not handle.done
        handle.cancel()
        handle.result()
