"""`runtime.cache`: prompts as texts, states and nodes are pinned, let go of and forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from context_support import fake_runtime, generate

import lmnb
from lmnb.backends.local import Runtime
from lmnb.errors import ArgumentError, CacheError, EngineClosedError
from lmnb.runtime.request import Request, SamplingParams

RULES = "The rules of the house, which every prompt begins with."


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with fake_runtime(kv_cache=400) as runtime:
        yield runtime
        if not runtime.closed:
            runtime._engine().check_integrity()


def fill(runtime: Runtime) -> None:
    """Push everything out of the pool that may go."""
    for number in range(8):
        context = runtime.new_context()
        context.append(f"{number} " * 60)
        generate(context, max_new_tokens=2)


def reused(runtime: Runtime, text: str) -> int:
    context = runtime.new_context()
    context.append(text)
    return generate(context, max_new_tokens=1).cached_tokens


def test_a_text_is_computed_kept_and_let_go(runtime: Runtime) -> None:
    pin = runtime.cache.pin(RULES)
    assert (pin.num_tokens, pin.text) == (len(RULES), RULES)
    assert runtime.cache.pin(RULES).node == pin.node
    fill(runtime)
    assert reused(runtime, RULES + " Why?") == len(RULES)
    assert repr(runtime.cache).endswith(f"{len(RULES)} of them pinned)")
    assert [each.text for each in runtime.cache.pins()] == [RULES]
    assert "The rules of the house" in repr(pin)
    pin.unpin()
    fill(runtime)
    assert reused(runtime, RULES + " Why?") == 0
    with pytest.raises(CacheError):
        pin.unpin()


def test_a_state_is_a_prompt(runtime: Runtime) -> None:
    @lmnb.function
    def begin(s: Any) -> None:
        s += RULES + lmnb.gen("more", max_tokens=5, ignore_eos=True)

    state = begin.run(backend=runtime)
    with runtime.cache.pin(state) as pin:
        assert pin.text == state.text()
        fill(runtime)
        assert pin.num_tokens == len(RULES) + 5
        assert reused(runtime, RULES + "!") == len(RULES)
        assert runtime.cache.unpin(state) == 1  # leaving the block is no error then
    with pytest.raises(CacheError, match="not pinned"):
        runtime.cache.unpin(state)
    assert runtime.cache.evict(RULES + "!") == 1  # the other branch of the same rules stays
    assert runtime.cache.evict(state) == len(RULES) + 5
    assert reused(runtime, RULES + "!") == 0


def test_all_pins_at_once_and_by_node(runtime: Runtime) -> None:
    first = runtime.cache.pin("one text")
    runtime.cache.pin("another text")
    assert runtime.cache.unpin() == 2
    assert runtime.cache.pin(first.node).text == "one text"
    assert runtime.cache.unpin(first.node) == 1
    assert runtime.cache.evict(first.node) == len("one text")
    assert runtime.cache.evict("one text") == 0


def test_more_than_half_of_the_pool_is_refused_and_leaves_nothing_behind(runtime: Runtime) -> None:
    with pytest.raises(CacheError, match="half of the KV pool, 200 tokens"):
        runtime.cache.pin("x" * 201)
    assert runtime.cache.pins() == []
    assert runtime.status().prompt_tokens == 0  # nothing was computed for it
    assert runtime.cache.pin("x" * 200).num_tokens == 200


def test_what_is_no_prompt_is_said(runtime: Runtime) -> None:
    with pytest.raises(ArgumentError, match="a prompt is a text, a state or a node's number, not float"):
        runtime.cache.pin(3.5)  # type: ignore[arg-type]
    runtime.shutdown()
    with pytest.raises(EngineClosedError):
        runtime.cache.pin(RULES)


def test_pins_come_through_while_many_prompts_run() -> None:
    with fake_runtime(kv_cache=600, step_seconds=0.001) as runtime:
        handles = [
            runtime.submit(
                Request(
                    input_ids=tuple(runtime.get_tokenizer().encode(f"{i} says a lot of things " * 3)),
                    sampling=SamplingParams(temperature=0.0, max_new_tokens=40, ignore_eos=True),
                )
            )
            for i in range(12)
        ]
        pins: list[Any] = []
        threads = [
            threading.Thread(target=lambda i=i: pins.append(runtime.cache.pin(f"{i}: " + RULES))) for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(pins) == 4
        assert all(len(handle.result(timeout=60).token_ids) == 40 for handle in handles)
        assert {pin.node for pin in runtime.cache.pins()} == {pin.node for pin in pins}
