"""Constraints that want too much cost their own request: time, size, masks. What was compiled can be kept on disk."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOKENIZER, fake_engine, prompt
from llguidance import LLParserLimits

from lmnb.errors import GrammarError
from lmnb.runtime import grammar, grammar_disk
from lmnb.runtime.compile_pool import CompilePool, give_way, processor_seconds, untimed
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.request import Constraint
from lmnb.runtime.tokenizer import Tokenizer

SCHEMA = Constraint("json_schema", json.dumps({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}}))


class Hanging:
    """A compiler that never comes back from `evil`, until the test is over."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.inner = Grammars(TOKENIZER, TOKENIZER.vocab_size)

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        if constraint.source == "evil":
            self.release.wait(60)
        return self.inner.compile(constraint)

    def known(self, constraint: Constraint) -> None:
        pass

    def close(self) -> None:
        self.inner.close()


def test_a_compilation_that_hangs_fails_its_own_request() -> None:
    grammars = Hanging()
    with fake_engine(grammars=grammars, compile_seconds=1.5) as engine:
        evil = [engine.submit(prompt("x", 5, constraint=Constraint("regex", "evil"))) for _ in range(5)]
        good = engine.submit(prompt("x", 5, constraint=Constraint("regex", "a+")))
        free = engine.submit(prompt("x", 5))
        assert free.result(timeout=30).finish_reason == "length"
        assert good.result(timeout=30).text.startswith("a")
        for handle in evil:
            with pytest.raises(GrammarError, match=r"more than 1\.5 s"):
                handle.result(timeout=30)
        grammars.release.set()


def test_what_every_first_constraint_waits_for_does_not_count() -> None:
    release = threading.Event()

    def compile(seconds: float) -> str:
        with untimed():
            time.sleep(1.2)
        release.wait(seconds)
        return "compiled"

    pool = CompilePool(limit_seconds=1)
    assert pool.submit(lambda: compile(0)).result() == "compiled"
    with pytest.raises(GrammarError, match="more than 1 s"):
        pool.submit(lambda: compile(60)).result()
    release.set()


def test_when_every_thread_hangs_others_are_told() -> None:
    pool = CompilePool(limit_seconds=0.2, max_threads=2)
    release = threading.Event()
    hung = [pool.submit(lambda: release.wait(30)) for _ in range(2)]
    time.sleep(0.05)
    refused = pool.submit(lambda: 1)
    for future in (*hung, refused):
        with pytest.raises(GrammarError):
            future.result(timeout=30)
    release.set()
    assert pool.submit(lambda: 2).result(timeout=30) == 2


@pytest.mark.parametrize("kind", ["regex", "json_schema", "ebnf"])
def test_a_huge_source_is_refused_before_it_is_read(kind: Any) -> None:
    with pytest.raises(GrammarError, match="200001 characters long"):
        Grammars(TOKENIZER, 259).compile(Constraint(kind, "a" * 200_001))


def test_a_grammar_that_grows_beyond_all_limits_fails_its_own_request() -> None:
    """Its cost grows with the square of the text's length: it must end, and hold up nobody for long."""
    hostile = 'start: s\ns: s s | "a" | "aa"\n'
    with fake_engine(grammars=Grammars(TOKENIZER, 259), context_tokens=8192, pool_tokens=8192) as engine:
        evil = engine.submit(prompt("x", 6000, constraint=Constraint("ebnf", hostile), min_new_tokens=6000))
        gaps = []
        while not evil.done:
            began = time.perf_counter()
            assert engine.submit(prompt("x", 1)).result(timeout=20).finish_reason == "length"
            gaps.append(time.perf_counter() - began)
        with pytest.raises(GrammarError, match="too"):
            evil.result()
        assert max(gaps) < sum(gaps) / 2, "another request waited for most of the time"


def test_a_grammar_that_takes_the_library_to_its_limits_at_once_is_not_said_to_match_nothing() -> None:
    grammar = "root ::= e\ne ::= e e e | e e | [a-z ]+ | [a-z]+ e [a-z]+"
    limited = LLParserLimits(step_lexer_fuel=200_000, step_max_items=5)
    compiler = Grammars(TOKENIZER, 259)
    compiler._get_llguidance()._limits = limited
    with pytest.raises(GrammarError, match="takes too long to follow"):
        compiler.compile(Constraint("ebnf", grammar))


def test_a_constraint_whose_first_mask_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would wait for it."""
    Grammars(TOKENIZER, 259).compile(SCHEMA)
    monkeypatch.setattr(grammar, "_MOST_MASK_SECONDS", 0.0)
    with pytest.raises(GrammarError, match=r"takes too long to follow.*requiring"):
        Grammars(TOKENIZER, 259).compile(SCHEMA)


def test_compiled_grammars_survive_a_restart(
    smollm2_tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path))
    monkeypatch.setattr(grammar_disk, "_WORTH_SECONDS", 0.0)
    text = '{"a":"y"}'
    for attempt in range(2):
        matcher = Grammars(smollm2_tokenizer, 49152).compile(SCHEMA)
        assert matcher.engine == "xgrammar"
        assert all(matcher.accept(i) for i in smollm2_tokenizer.encode(text)), attempt
        assert matcher.is_done()
        (file,) = (tmp_path / "grammars").glob("*.json")
        if attempt == 0:
            saved = file.stat().st_mtime_ns
    Grammars(TOKENIZER, 259).compile(SCHEMA)  # another vocabulary has a file of its own
    assert len([*(tmp_path / "grammars").glob("*.json")]) == 2
    file.write_text("{broken", "utf-8")
    assert Grammars(smollm2_tokenizer, 49152).compile(SCHEMA).engine == "xgrammar"
    assert file.stat().st_mtime_ns > saved


def test_the_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path))
    monkeypatch.setattr(grammar_disk, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(grammar_disk, "_MOST_BYTES", 20_000)
    grammars = Grammars(TOKENIZER, 259)
    for i in range(12):
        grammars.compile(Constraint("json_schema", json.dumps({"enum": ["x" * i, "y"]})))
    total = sum(file.stat().st_size for file in (tmp_path / "grammars").glob("*.json"))
    assert 0 < total <= 20_000


def test_a_grammar_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path))
    monkeypatch.setattr(grammar_disk, "_WORTH_SECONDS", 0.0)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(grammar_disk.os, "replace", full)
    assert Grammars(TOKENIZER, 259).compile(SCHEMA).engine == "xgrammar"
    assert not [*(tmp_path / "grammars").iterdir()]


def test_many_compilations_take_few_threads_and_none_is_refused_while_others_end() -> None:
    """A batch of rows with constraints of their own: together they may take longer than one may."""
    pool = CompilePool(limit_seconds=1, max_threads=3)
    most = [0]

    def compile(number: int) -> int:
        most[0] = max(most[0], sum(thread.name == "lmnb-grammar" for thread in threading.enumerate()))
        time.sleep(0.03)
        return number

    futures = [pool.submit(partial(compile, number)) for number in range(120)]  # 1.2 seconds at the least
    assert [future.result(timeout=20) for future in futures] == list(range(120))
    assert most[0] == 3


def test_a_compilation_that_comes_back_late_gives_its_place_to_others() -> None:
    pool = CompilePool(limit_seconds=1, max_threads=1)
    release = threading.Event()
    hung = pool.submit(lambda: release.wait(30))
    with pytest.raises(GrammarError, match="more than 1 s"):
        hung.result(timeout=30)
    waiting = [pool.submit(lambda: 1) for _ in range(3)]
    release.set()
    assert [future.result(timeout=30) for future in waiting] == [1, 1, 1]
    assert pool.submit(lambda: 2).result(timeout=30) == 2


def test_a_process_that_may_have_no_more_threads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CompilePool(limit_seconds=5)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no more threads")))
        with pytest.raises(RuntimeError, match="no more threads"):
            pool.submit(lambda: 1)
    assert pool.submit(lambda: 2).result(timeout=30) == 2


def test_of_many_compilations_one_thread_is_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread, which asks for them, must not wait for so many threads to begin."""
    start, started_by = threading.Thread.start, []
    take, all_are_there = CompilePool._next, threading.Event()

    def counted(thread: threading.Thread) -> None:
        if thread.name == "lmnb-grammar":
            started_by.append(threading.current_thread().name)
        start(thread)

    def take_later(pool: CompilePool) -> Any:
        assert all_are_there.wait(30)
        return take(pool)

    monkeypatch.setattr(threading.Thread, "start", counted)
    monkeypatch.setattr(CompilePool, "_next", take_later)
    pool = CompilePool(limit_seconds=30, max_threads=5)
    together = threading.Barrier(5)
    futures = [pool.submit(lambda: together.wait(20)) for _ in range(10)]
    all_are_there.set()
    assert sorted(future.result(timeout=30) for future in futures) == sorted([*range(5)] * 2)
    assert started_by.count(threading.current_thread().name) == 1
    assert started_by.count("lmnb-grammar") >= 4


def test_what_is_done_elsewhere_counts_as_the_askers_time() -> None:
    def work() -> str:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return "done"

    both, own = processor_seconds(), time.thread_time()
    assert give_way(work) == "done"
    both, own = processor_seconds() - both, time.thread_time() - own
    assert both >= own + 0.05
