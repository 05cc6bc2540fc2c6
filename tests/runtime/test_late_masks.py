"""A mask that takes long holds up its own request only, and changes nothing of what any request says."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from device_support import DEVICE
from engine_support import TOKENIZER, fake_engine, fake_of, greedy, prompt
from late_support import Delays, Gate, GatedGrammars, count_late
from model_support import random_model
from random_requests import assert_same, disturbed
from small_tokenizers import small_tokenizer

from lmnb.errors import EngineClosedError, GenerationError, GrammarError
from lmnb.runtime import constraint_size, mask_worker
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import load_model
from lmnb.runtime.request import Completion, Constraint, Request, SamplingParams

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("step_order")]

GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, cache_size=256)


@pytest.fixture
def late_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """See `count_late`."""
    return count_late(monkeypatch)


class Panic(BaseException):
    """What a library written in Rust may raise."""


def gated(gates: dict[str, list[Gate]]) -> GatedGrammars:
    return GatedGrammars(GRAMMARS, gates)


def alone(request: Request, **config: Any) -> Completion:
    """What it says where no mask is late."""
    with fake_engine(grammars=GRAMMARS, **config) as engine:
        return engine.submit(request).result(timeout=20)


def constrained(regex: str, text: str = "Q: ", max_new_tokens: int = 12, **options: Any) -> Request:
    return prompt(text, max_new_tokens, constraint=Constraint("regex", regex), **options)


SLOW = "[a-f]{3}(yes, of course|yet another)[a-f]{5}"
OTHERS = [
    constrained("[a-z]{20}", "another one", 20),
    prompt("a plain one", 30),
    constrained("(no|yes), (one|only two)[a-d]{3}", "Q: and more", 20, temperature=1.0, seed=5),
]


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"return_logprob": True, "top_logprobs_num": 2, "temperature": 1.0, "seed": 4},
        {"jump_forward": False},
        {"frequency_penalty": 1.0, "stop": ("q",), "ignore_eos": False, "min_new_tokens": 2},
    ],
    ids=["greedy", "seeded", "logprobs", "no-jumps", "penalties"],
)
def test_others_go_on_while_a_mask_is_late(options: dict[str, Any], number: int) -> None:
    asked = constrained(SLOW, "Q: a prompt of several chunks", 30, **options)
    asked = replace(asked, logprob_start=3 if options.get("return_logprob") else None)
    gate = Gate(number)
    with fake_engine(grammars=gated({SLOW: [gate]}), prefill_chunk=8) as engine:
        slow = engine.submit(asked)
        assert gate.entered.wait(20)
        done = [handle.result(timeout=20) for handle in [engine.submit(request) for request in OTHERS]]
        assert not slow.done
        engine.check_integrity()
        gate.opened.set()
        late = slow.result(timeout=20)
    assert_same([late, *done], [alone(request) for request in (asked, *OTHERS)])
    assert late.first_token_seconds is not None


def test_every_mask_may_be_late() -> None:
    asked = constrained("[a-z]{9}", return_logprob=True)
    gates = [Gate(*range(1, 20)) for _ in range(2)]
    with fake_engine(grammars=gated({"[a-z]{9}": gates})) as engine:
        handles = [engine.submit(replace(asked, input_ids=(*asked.input_ids, i))) for i in range(2)]
        for gate in gates:
            assert gate.entered.wait(20)
        assert list(engine.submit(prompt("x", 8)).result(timeout=20).token_ids) == greedy("x", 8)
        for gate in reversed(gates):
            gate.opened.set()
        done = [handle.result(timeout=20) for handle in handles]
        assert {completion.num_preemptions for completion in done} == {0}  # with memory for all, whoever waits
    assert_same(done, [alone(replace(asked, input_ids=(*asked.input_ids, i))) for i in range(2)])


def test_more_late_masks_than_threads() -> None:
    count = 2 * mask_worker._MOST_DISPLACED
    regexes = [f"{chr(97 + i)}[a-z]{{5}}" for i in range(count)]
    gates = {source: [Gate(2)] for source in regexes}
    with fake_engine(grammars=gated(gates)) as engine:
        requests = [constrained(source, str(i), jump_forward=False) for i, source in enumerate(regexes)]
        handles = [engine.submit(request) for request in requests]
        assert list(engine.submit(prompt("x", 8)).result(timeout=20).token_ids) == greedy("x", 8)
        for (gate,) in gates.values():
            gate.opened.set()
        done = [handle.result(timeout=20) for handle in handles]
        worker = engine._loop._masks
        assert len(worker._threads) <= worker._num_places + mask_worker._MOST_DISPLACED
    assert_same(done, [alone(request) for request in requests])


def test_the_engine_sleeps_until_the_mask_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(2)
    with fake_engine(grammars=gated({SLOW: [gate]})) as engine:
        schedule, calls = engine._loop.scheduler.schedule, [0]

        def counted(**options: Any) -> Any:
            calls[0] += 1
            return schedule(**options)

        monkeypatch.setattr(engine._loop.scheduler, "schedule", counted)
        handle = engine.submit(constrained(SLOW))
        assert gate.entered.wait(20)
        before = calls[0]
        time.sleep(0.3)
        assert calls[0] - before < 5
        gate.opened.set()
        assert handle.result(timeout=20).finish_reason == "length"
        assert engine.status().mask_wait_seconds > 0.2


def test_a_prompt_is_shared_while_its_first_mask_is_late() -> None:
    text = "a common prompt that is long enough to be worth sharing"
    gate = Gate(1)
    with fake_engine(grammars=gated({SLOW: [gate]}), prefill_chunk=16) as engine:
        slow = engine.submit(constrained(SLOW, text))
        assert gate.entered.wait(20)
        others = [prompt(text, 9), prompt(text + " further", 9), constrained("[a-z]{9}", text)]
        done = [handle.result(timeout=20) for handle in [engine.submit(each) for each in others]]
        assert all(completion.cached_tokens >= len(text) - 1 for completion in done)
        gate.opened.set()
        late = slow.result(timeout=20)
    assert_same([late, *done], [alone(request) for request in (constrained(SLOW, text), *others)])


@pytest.mark.parametrize("number", [1, 3])
def test_it_may_be_put_back_while_its_mask_is_late(number: int) -> None:
    first, asked = (
        constrained("[a-z]{90}", "the first one", 90),
        constrained(SLOW, "the late one", 30, temperature=1.0, seed=1),
    )
    holds_first, gate = Gate(2), Gate(number)
    gates = gated({"[a-z]{90}": [holds_first], SLOW: [gate]})
    with fake_engine(grammars=gates, pool_tokens=105, max_running=2) as engine:
        oldest = engine.submit(first)
        assert holds_first.entered.wait(20)
        slow = engine.submit(asked)
        assert gate.entered.wait(20)
        holds_first.opened.set()
        done = oldest.result(timeout=20)
        assert not slow.done
        engine.check_integrity()
        gate.opened.set()
        late = slow.result(timeout=20)
        assert late.num_preemptions == 1
        assert engine.status().num_masks == late.num_steps + done.num_steps  # none was made twice
    assert_same([late, done], [alone(asked), alone(first)])


def test_its_mask_is_there_before_it_is_taken_in_again() -> None:
    """Put back, with its mask made before it is computed again."""
    first, asked = constrained("[a-z]{90}", "the first one", 90), constrained(SLOW, "the late one", 30)
    holds_first, gate = Gate(2, 86), Gate(3)
    gates = gated({"[a-z]{90}": [holds_first], SLOW: [gate]})
    with fake_engine(grammars=gates, pool_tokens=105, max_running=2) as engine:
        oldest = engine.submit(first)
        assert holds_first.entered.wait(20)
        slow = engine.submit(asked)
        assert gate.entered.wait(20)
        holds_first.entered.clear()
        holds_first.numbers = (86,)
        first_open, holds_first.opened = holds_first.opened, threading.Event()
        first_open.set()
        assert holds_first.entered.wait(20)  # it has taken all the memory
        engine.status()
        assert len(engine._loop._late) == 1
        gate.opened.set()
        engine.status()
        holds_first.opened.set()
        done = [slow.result(timeout=20), oldest.result(timeout=20)]
        assert done[0].num_preemptions == 1
    assert_same(done, [alone(asked), alone(first)])


def test_a_late_request_is_not_taken_for_one_that_starves() -> None:
    gate = Gate(1)
    with fake_engine(grammars=gated({SLOW: [gate]}), pool_tokens=60, min_shared_tokens=1) as engine:
        engine.submit(prompt("to be pinned", 0)).result(timeout=20)
        engine.pin_tokens(TOKENIZER.encode("to be pinned"))
        asked = constrained(SLOW, "x" * (60 - len("to be pinned")), 1)
        slow = engine.submit(asked)
        assert gate.entered.wait(20)
        assert engine.status().free_tokens == 0
        engine.status()
        gate.opened.set()
        assert_same([slow.result(timeout=20)], [alone(asked)])
        engine.unpin_all()


@pytest.mark.parametrize("is_alone", [False, True])
def test_cancelled_while_its_mask_is_late(is_alone: bool) -> None:
    gate = Gate(3)
    with fake_engine(grammars=gated({SLOW: [gate]})) as engine:
        slow = engine.submit(constrained(SLOW))
        assert gate.entered.wait(20)
        other = None if is_alone else engine.submit(OTHERS[0])
        slow.cancel()
        completion = slow.result(timeout=20)
        assert (completion.finish_reason, len(completion.token_ids)) == ("cancelled", 2)
        if other is not None:
            assert_same([other.result(timeout=20)], [alone(OTHERS[0])])
        assert engine.flush_cache()
        assert engine.status().free_tokens == engine.status().pool_tokens
        assert not engine._loop._late
        gate.opened.set()
        assert_same([engine.submit(constrained(SLOW)).result(timeout=20)], [alone(constrained(SLOW))])


def test_one_of_two_late_ones_is_cancelled() -> None:
    gates = [Gate(2), Gate(2)]
    with fake_engine(grammars=gated({SLOW: gates})) as engine:
        handles = [engine.submit(constrained(SLOW, text)) for text in "ab"]
        for gate in gates:
            assert gate.entered.wait(20)
        assert_same([engine.submit(OTHERS[0]).result(timeout=20)], [alone(OTHERS[0])])
        assert len(engine._loop._late) == 2
        handles[0].cancel()
        assert_same([engine.submit(OTHERS[0]).result(timeout=20)], [alone(OTHERS[0])])
        assert len(engine._loop._late) == 1
        for gate in gates:
            gate.opened.set()
        assert_same([handles[1].result(timeout=20)], [alone(constrained(SLOW, "b"))])


def test_cancelled_before_a_thread_has_begun() -> None:
    gates = {f"{letter}[0-9]{{5}}": [Gate(1)] for letter in "abcdefghijklmnop"}
    with fake_engine(grammars=gated(gates)) as engine:
        handles = [engine.submit(constrained(source, jump_forward=False)) for source in gates]
        for handle in handles:
            handle.cancel()
        assert {handle.result(timeout=20).finish_reason for handle in handles} == {"cancelled"}
        for (gate,) in gates.values():
            gate.opened.set()
        assert_same([engine.submit(OTHERS[0]).result(timeout=20)], [alone(OTHERS[0])])


def test_closed_while_a_mask_is_late() -> None:
    gate = Gate(2)
    with fake_engine(grammars=gated({SLOW: [gate]})) as engine:
        slow = engine.submit(constrained(SLOW))
        assert gate.entered.wait(20)
        threads = [*engine._loop._masks._threads]
        engine.close()
        with pytest.raises(EngineClosedError):
            slow.result(timeout=20)
        assert any(thread.is_alive() for thread in threads)  # at its mask
        gate.opened.set()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("error", [RuntimeError("broken on purpose"), Panic("broken on purpose")], ids=repr)
def test_a_late_mask_that_cannot_be_made(error: BaseException) -> None:
    gate = Gate(2, error=error)
    with fake_engine(grammars=gated({SLOW: [gate]})) as engine:
        slow, other = engine.submit(constrained(SLOW)), engine.submit(OTHERS[1])
        assert gate.entered.wait(20)
        assert_same([other.result(timeout=20)], [alone(OTHERS[1])])
        gate.opened.set()
        with pytest.raises((GenerationError, GrammarError), match="broken on purpose"):
            slow.result(timeout=20)
        assert_same([engine.submit(constrained(SLOW)).result(timeout=20)], [alone(constrained(SLOW))])


def test_a_step_that_fails_while_a_mask_is_late() -> None:
    """It fails its own requests: the late one is no part of it."""
    gate = Gate(2)
    with fake_engine(grammars=gated({SLOW: [gate]})) as engine:
        slow = engine.submit(constrained(SLOW))
        assert gate.entered.wait(20)
        engine.status()
        fake_of(engine).fail_next = RuntimeError("a broken kernel")
        with pytest.raises(GenerationError, match="a broken kernel"):
            engine.submit(prompt("x", 8)).result(timeout=20)
        gate.opened.set()
        assert_same([slow.result(timeout=20)], [alone(constrained(SLOW))])


def test_masks_that_take_too_long_fail_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_size, "_FOLLOWING_SECONDS", 0.0)
    monkeypatch.setattr(constraint_size, "_FOLLOWING_SECONDS_A_TOKEN", 0.0)
    gate = Gate(1)
    with fake_engine(grammars=gated({SLOW: [gate]})) as engine:
        slow, other = engine.submit(constrained(SLOW)), engine.submit(OTHERS[1])
        assert gate.entered.wait(20)
        assert_same([other.result(timeout=20)], [alone(OTHERS[1])])
        gate.opened.set()
        with pytest.raises(GrammarError, match="masks take too long"):
            slow.result(timeout=20)


def test_a_request_that_begins_in_the_middle_is_late() -> None:
    whole = alone(constrained(SLOW, max_new_tokens=30, temperature=1.0, seed=2))
    begun = replace(constrained(SLOW, max_new_tokens=30, temperature=1.0, seed=2), begun_ids=whole.token_ids[:5])
    gate = Gate(1)
    with fake_engine(grammars=gated({SLOW: [gate]})) as engine:
        slow = engine.submit(begun)
        assert gate.entered.wait(20)
        # Another begins with what the late one has computed.
        same = engine.submit(replace(begun, begun_ids=whole.token_ids[:6])).result(timeout=20)
        gate.opened.set()
        assert slow.result(timeout=20).token_ids == same.token_ids == whole.token_ids


def test_strict_to_the_last_bit(tmp_path: Path, late_rows: list[int]) -> None:
    """A late row is chosen from the logits that its step gave; one that was put back computes the same again."""
    tokenizer = small_tokenizer("gpt2")
    random_model("llama", vocab_size=tokenizer.vocab_size).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(tokenizer._trusted.to_str(), "utf-8")
    loaded = load_model(tmp_path, dtype="float32", device=DEVICE)
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    rng = random.Random(0)
    requests = []
    for i in range(8):
        constraint = Constraint("regex", ["[a-z ]{40}", "([a-f]{4}, and so on, ){3}"][i % 2]) if i < 6 else None
        sampling = SamplingParams(
            temperature=(0.0, 1.0)[i % 3 > 0], seed=i, max_new_tokens=25, ignore_eos=True, return_logprob=True,
            constraint=constraint,
        )  # fmt: skip
        ids = tuple(rng.randrange(3, 250) for _ in range(20 + 9 * i))
        requests.append(Request(input_ids=ids, sampling=sampling))
    found: list[list[Completion]] = []
    for delays in (None, Delays(grammars, 1), Delays(grammars, 2)):
        config = EngineConfig(pool_tokens=2048 if delays is None else 400, deterministic=True)
        engine = Engine(loaded.model, loaded.tokenizer, config, delays or grammars)
        try:
            handles = [engine.submit(request) for request in requests]
            found.append([handle.result(timeout=60) for handle in handles])
            engine.check_integrity()
        finally:
            engine.close()
    assert late_rows
    for other in found[1:]:
        assert_same(other, found[0])
        assert [each.logprobs for each in other] == [each.logprobs for each in found[0]]


SOAKS: list[dict[str, Any]] = [
    {},
    {"pool_tokens": 200, "max_running": 8, "prefill_chunk": 16},
    {"prefix_cache": False, "max_running": 3},
    {"jump_forward": False, "prefill_chunk": 7},
]


@pytest.mark.parametrize("config", SOAKS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_late_masks_change_no_answer(config: dict[str, Any], seed: int, late_rows: list[int]) -> None:
    """Whatever is asked for, and whatever is cancelled or fails meanwhile."""
    with fake_engine(grammars=Delays(GRAMMARS, seed), step_seconds=0.001, **config) as engine:
        whole = disturbed(engine, random.Random(seed), cancels=0.1, failures=0.03)
    assert len(whole) > 10
    assert late_rows
    settings = {"jump_forward": config.get("jump_forward", True)}
    with fake_engine(grammars=GRAMMARS, overlap=False, **settings) as engine:
        handles = [engine.submit(request) for request, _ in whole]
        assert_same([got for _, got in whole], [handle.result(timeout=60) for handle in handles])
