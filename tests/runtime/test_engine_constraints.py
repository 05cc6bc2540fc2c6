"""Constraints through the whole engine: compiled off its loop, obeyed by every token, failing for themselves only."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from engine_support import TOKENIZER, fake_engine, prompt

from lmnb.errors import EngineClosedError, GrammarError
from lmnb.runtime import live_requests
from lmnb.runtime.compile_pool import CompilePool
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.request import Constraint
from lmnb.runtime.warm_up import warm_up

pytestmark = pytest.mark.usefixtures("step_order")

REGEXES = [r"\d{4}-\d{2}-\d{2}", r"(yes|no)", r"[a-c]{1,12}z", r"(ab|cd)+!", "[😀-🙏]{2}"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Rex", "Tom"]}, "legs": {"type": "integer", "minimum": 1, "maximum": 8}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}


def grammars() -> Grammars:
    return Grammars(TOKENIZER, TOKENIZER.vocab_size)


@pytest.mark.timeout(60)
def test_constrained_and_free_requests_share_a_batch() -> None:
    with fake_engine(grammars=grammars()) as engine:
        schema = Constraint("json_schema", json.dumps(SCHEMA))
        constrained = [
            engine.submit(prompt(f"{seed} asks", 200, temperature=1.0, seed=seed, constraint=constraint))
            for seed in range(4)
            for constraint in (*(Constraint("regex", regex) for regex in REGEXES), schema)
        ]
        free = [engine.submit(prompt("free", 30)) for _ in range(3)]
        for i, handle in enumerate(constrained):
            completion = handle.result(timeout=50)
            kind = i % (len(REGEXES) + 1)
            if kind == len(REGEXES):
                value = json.loads(completion.text)
                assert value["name"] in ("Rex", "Tom")
                assert 1 <= value["legs"] <= 8
            elif completion.finish_reason == "stop":
                assert re.fullmatch(REGEXES[kind], completion.text)
        assert len({handle.result().token_ids for handle in free}) == 1


def test_max_tokens_is_obeyed_inside_a_constraint() -> None:
    with fake_engine(grammars=grammars()) as engine:
        completion = engine.submit(prompt("x", 5, constraint=Constraint("regex", "[0-9]+"))).result()
        assert re.fullmatch("[0-9]{1,5}", completion.text)
        assert completion.finish_reason == ("length" if len(completion.text) == 5 else "stop")


def test_a_match_complete_at_the_limit_has_stopped_by_itself() -> None:
    with fake_engine(grammars=grammars()) as engine:
        completion = engine.submit(prompt("x", 5, constraint=Constraint("regex", "[0-9]{5}"))).result()
        assert (len(completion.text), completion.finish_reason) == (5, "stop")


def test_a_bad_constraint_fails_its_own_request() -> None:
    with fake_engine(grammars=grammars()) as engine:
        bad = engine.submit(prompt("x", 5, constraint=Constraint("regex", "(")))
        good = engine.submit(prompt("x", 5))
        with pytest.raises(GrammarError):
            bad.result(timeout=30)
        assert good.result().finish_reason == "length"


def test_what_is_compiled_already_takes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    submit, sources = CompilePool.submit, []

    def counted(pool: CompilePool, compile: Callable[[], Any]) -> Any:
        sources.append(compile)
        return submit(pool, compile)

    monkeypatch.setattr(CompilePool, "submit", counted)
    with fake_engine(grammars=grammars()) as engine:
        for number in range(3):
            for regex in REGEXES:
                asked = prompt(f"{number}", 30, constraint=Constraint("regex", regex), ignore_eos=False)
                assert engine.submit(asked).result(timeout=30).finish_reason in ("stop", "length")
            assert len(sources) == len(REGEXES)
        for _ in range(2):  # what cannot be compiled is tried again
            with pytest.raises(GrammarError):
                engine.submit(prompt("x", 5, constraint=Constraint("regex", "(a"))).result(timeout=30)
        assert len(sources) == len(REGEXES) + 2


class SlowGrammars:
    """A compiler that takes as long as the test wants."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.inner = grammars()

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        assert self.release.wait(30)
        return self.inner.compile(constraint)

    def known(self, constraint: Constraint) -> None:
        pass

    def close(self) -> None:
        self.inner.close()


def test_compilation_holds_up_nobody_and_can_be_cancelled() -> None:
    slow = SlowGrammars()
    with fake_engine(grammars=slow) as engine:
        waiting = engine.submit(prompt("x", 5, constraint=Constraint("regex", "a+")))
        given_up = engine.submit(prompt("x", 5, constraint=Constraint("regex", "b+")))
        assert engine.submit(prompt("x", 5)).result(timeout=30).finish_reason == "length"
        assert engine.status().waiting == 2
        given_up.cancel()
        assert given_up.result(timeout=30).finish_reason == "cancelled"
        slow.release.set()
        assert re.fullmatch("a+", waiting.result(timeout=30).text)


@pytest.mark.parametrize("fails", [False, True])
def test_constrained_requests_begin_behind_a_rehearsal(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()

    def rehearsal() -> None:
        begun.set()
        assert end.wait(30)
        if fails:
            raise RuntimeError("out of memory")

    with fake_engine(grammars=grammars(), compile_seconds=0.2) as engine:
        monkeypatch.setattr(engine._loop, "_rehearsal", rehearsal)
        thread = warm_up(engine.rehearse)
        assert begun.wait(30)
        waiting = engine.submit(prompt("x", 5, constraint=Constraint("regex", "a+")))
        given_up = engine.submit(prompt("x", 5, constraint=Constraint("regex", "b+")))
        assert engine.submit(prompt("x", 5)).result(timeout=30).finish_reason == "length"
        given_up.cancel()
        assert given_up.result(timeout=30).finish_reason == "cancelled"
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)  # longer than it may take to compile: that is not what it waits for
        another = engine.submit(prompt("x", 5, constraint=Constraint("regex", "a+")))  # it is compiled by now
        with pytest.raises(TimeoutError):
            another.result(timeout=0.5)
        end.set()
        for each in (waiting, another):
            assert re.fullmatch("a+", each.result(timeout=30).text)
        thread.join(30)


def test_a_rehearsal_that_hangs_is_not_waited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()

    def rehearsal() -> None:
        begun.set()
        assert end.wait(30)

    monkeypatch.setattr(live_requests, "_MOST_REHEARSAL_SECONDS", 0.1)
    with fake_engine(grammars=grammars()) as engine:
        monkeypatch.setattr(engine._loop, "_rehearsal", rehearsal)
        thread = warm_up(engine.rehearse)
        assert begun.wait(30)
        for _ in range(2):  # what is compiled already, too
            handle = engine.submit(prompt("x", 5, constraint=Constraint("regex", "a+")))
            assert re.fullmatch("a+", handle.result(timeout=20).text)
        end.set()
        thread.join(30)


def test_an_engine_closed_in_a_rehearsal_fails_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()

    def rehearsal() -> None:
        begun.set()
        assert end.wait(30)

    with fake_engine(grammars=grammars()) as engine:
        monkeypatch.setattr(engine._loop, "_rehearsal", rehearsal)
        thread = warm_up(engine.rehearse)
        assert begun.wait(30)
        waiting = engine.submit(prompt("x", 5, constraint=Constraint("regex", "a+")))
        engine.close()
        with pytest.raises(EngineClosedError):
            waiting.result(timeout=30)
        end.set()
        thread.join(30)
