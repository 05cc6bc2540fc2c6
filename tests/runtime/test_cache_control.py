"""Pins, evictions and flushes by hand hold under load, are refused with the reason, and never wedge the engine."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from engine_support import TOKENIZER, fake_engine, greedy, prompt

from lmnb.errors import CacheError, RequestTooLongError
from lmnb.runtime.engine import Engine
from lmnb.runtime.request import Request

SHARED = "A system prompt that many questions share. "


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text))


def cached(engine: Engine, text: str, new: int = 0) -> int:
    """Ask for `text`; how many of its tokens had been cached."""
    return engine.submit(prompt(text, new)).result(timeout=20).cached_tokens


def node_of(engine: Engine, text: str) -> int:
    """The node whose own tokens are `text`."""
    return next(node.node for node in engine.snapshot().nodes if node.token_ids == ids(text))


def test_what_is_pinned_outlives_traffic_that_fills_the_pool_many_times() -> None:
    with fake_engine(pool_tokens=200, prefill_chunk=32) as engine:
        cached(engine, SHARED)
        assert engine.pin_tokens(ids(SHARED)) == engine.pins()[0]
        for i in range(12):
            cached(engine, f"{i} is a prompt of its own, long enough to push others out of the pool", 8)
            engine.check_integrity()
        assert engine.status().pinned_tokens == len(ids(SHARED))
        assert cached(engine, SHARED + "Why?") == len(ids(SHARED))
        assert engine.flush_cache()
        assert engine.status().cached_tokens == len(ids(SHARED))
        assert engine.unpin_all() == 1
        assert engine.flush_cache()
        assert engine.status().cached_tokens == engine.status().pinned_tokens == 0


def test_a_prefix_that_is_not_cached_whole_is_not_pinned() -> None:
    with fake_engine() as engine:
        cached(engine, SHARED)
        nodes = engine.snapshot().nodes
        assert engine.pin_tokens(ids(SHARED + "more")) is None
        assert engine.pin_tokens(()) is None
        assert engine.pins() == []
        assert engine.snapshot().nodes == nodes


def test_a_pin_inside_of_a_node_holds_exactly_what_was_asked() -> None:
    with fake_engine() as engine:
        cached(engine, SHARED + "Why?")
        pin = engine.pin_tokens(ids(SHARED))
        assert pin is not None
        assert pin.token_ids == ids(SHARED)
        assert engine.status().pinned_tokens == len(ids(SHARED))


def test_pins_may_hold_half_of_the_pool() -> None:
    with fake_engine(pool_tokens=100) as engine:
        cached(engine, "x" * 40)
        cached(engine, "x" * 30 + "y" * 20)
        first = engine.pin(node_of(engine, "x" * 10))
        assert len(first.token_ids) == 40
        with pytest.raises(CacheError, match=r"half of the KV pool, 50 tokens, and this would make it 60"):
            engine.pin(node_of(engine, "y" * 20))
        assert engine.pins() == [first]
        engine.unpin(first.node)
        assert len(engine.pin(node_of(engine, "y" * 20)).token_ids) == 50


@pytest.mark.timeout(60)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_that_pins_leave_no_room_for_is_told_so(overlap: bool) -> None:
    with fake_engine(pool_tokens=100, prefill_chunk=16, overlap=overlap) as engine:
        cached(engine, "x" * 40)
        pin = engine.pin_tokens(ids("x" * 40))
        assert pin is not None
        with pytest.raises(RequestTooLongError, match=r"pins hold 40 of the KV pool's 100 tokens"):
            engine.submit(prompt("y" * 61, 1)).result(timeout=20)
        assert len(engine.submit(prompt("y" * 60, 1)).result(timeout=20).token_ids) == 1
        handle = engine.submit(prompt("z" * 50, 40))  # begins, and runs out of room on the way
        text = "".join(event.text for event in handle if hasattr(event, "text"))
        with pytest.raises(RequestTooLongError, match="unpin"):
            handle.result(timeout=20)
        assert text == TOKENIZER.decode(greedy("z" * 50, 40))[: len(text)]
        assert len(text) >= 8
        assert cached(engine, "x" * 40 + "!") == 40  # the engine goes on
        engine.unpin(pin.node)
        assert len(engine.submit(prompt("y" * 61, 1)).result(timeout=20).token_ids) == 1


def test_only_what_the_pins_leave_no_room_for_fails() -> None:
    with fake_engine(pool_tokens=120, prefill_chunk=16) as engine:
        cached(engine, "x" * 60)
        assert engine.pin_tokens(ids("x" * 60))
        handles = {text: engine.submit(prompt(text, 8)) for text in ("y" * 90, "short", "x" * 60 + "z" * 20, "y" * 61)}
        for text, handle in handles.items():
            if text.startswith("y"):
                with pytest.raises(RequestTooLongError):
                    handle.result(timeout=20)
            else:
                assert list(handle.result(timeout=20).token_ids) == greedy(text, 8)


def test_evicting_a_node_takes_what_lies_below_and_says_how_much() -> None:
    with fake_engine() as engine:
        for end in ("one", "two"):
            cached(engine, SHARED + end)
        cached(engine, "Other")
        top = next(node.node for node in engine.snapshot().nodes if node.token_ids[:3] == ids(SHARED)[:3])
        assert engine.evict(top) == len(ids(SHARED)) + len("one") + len("two")
        assert [node.token_ids for node in engine.snapshot().nodes] == [ids("Other")]
        assert engine.evict_tokens(ids("nothing like it")) == 0
        assert engine.evict_tokens(ids("Other people")) == len(ids("Other"))
        assert engine.status().cached_tokens == 0
        told = [(event.kind, event.reason) for event in engine.cache_events() if event.kind == "evict"]
        assert told == [("evict", "asked")] * 4


def test_what_a_request_uses_is_not_evicted_and_the_user_is_named() -> None:
    with fake_engine(step_seconds=0.002) as engine:
        sent = prompt(SHARED, 2000)
        handle = engine.submit(Request(input_ids=sent.input_ids, sampling=sent.sampling, owner="cell 3"))
        next(iter(handle))
        node = engine.snapshot().nodes[0].node
        with pytest.raises(CacheError, match=rf"a running request uses node {node} \(cell 3\)"):
            engine.evict(node)
        pin = engine.pin(node)  # in use is no obstacle to a pin
        handle.cancel()
        handle.result()
        with pytest.raises(CacheError, match="while it is pinned"):
            engine.evict(node)
        engine.unpin(pin.node)
        assert engine.evict(node) >= len(ids(SHARED))


def test_what_cannot_be_is_said() -> None:
    with fake_engine() as engine:
        cached(engine, SHARED + "one")
        cached(engine, SHARED + "two")
        upper, leaf = node_of(engine, SHARED), node_of(engine, "two")
        engine.pin(leaf)
        with pytest.raises(CacheError, match="a pinned node lies below it"):
            engine.evict(upper)
        with pytest.raises(CacheError, match="not pinned itself; a pin below keeps it"):
            engine.unpin(upper)
        for act in (engine.pin, engine.unpin, engine.evict):
            for number, named in ((0, "0"), (99, "99"), (10**5000, "this int")):
                with pytest.raises(CacheError, match=f"no node {named} any more"):
                    act(number)


def test_an_eviction_for_room_names_who_needed_it() -> None:
    with fake_engine(pool_tokens=100) as engine:
        for owner, text in (("cell 1", "x" * 60), ("cell 2", "y" * 60)):
            sent = prompt(text, 0)
            engine.submit(Request(input_ids=sent.input_ids, sampling=sent.sampling, owner=owner)).result()
        (gone,) = [event for event in engine.cache_events() if event.kind == "evict"]
        assert (gone.owner, gone.reason, gone.beneficiary) == ("cell 1", "room", "cell 2")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_under_pins_leaves_every_slot_accounted_for(seed: int) -> None:
    rng = random.Random(seed)
    with fake_engine(pool_tokens=220, prefill_chunk=24, max_running=6, overlap=bool(seed % 2)) as engine:
        asked, refused = [], 0
        for _ in range(80):
            text = SHARED[: rng.randint(1, len(SHARED))] + "?" * rng.randint(0, 60) + str(rng.randint(0, 5))
            asked.append((text, engine.submit(prompt(text, rng.randint(0, 30)))))
            nodes = engine.snapshot().nodes
            if nodes and rng.random() < 0.5:
                act = rng.choice([engine.pin, engine.pin, engine.unpin, engine.evict])
                try:
                    act(rng.choice(nodes).node)
                except CacheError:
                    refused += 1
            if rng.random() < 0.1:
                engine.unpin_all()
            if rng.random() < 0.1:
                rng.choice(asked)[1].cancel()
            engine.check_integrity()
            pinned = {node.node for node in engine.snapshot().nodes if node.pinned}
            assert pinned == {pin.node for pin in engine.pins()}
            assert engine.status().pinned_tokens <= 110
        done = 0
        for text, handle in asked:
            with suppress(RequestTooLongError):
                completion = handle.result(timeout=60)
                assert list(completion.token_ids) == greedy(text, len(completion.token_ids))
                done += 1
        assert done > 40
        assert refused
        engine.unpin_all()
        assert engine.flush_cache()
        assert engine.status().cached_tokens == 0
