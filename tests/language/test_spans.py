"""Runs as spans: one for each program, branch and generation, whatever ends them."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.language.spans import LONGEST, Span, SpanFollower


class Recorder:
    def __init__(self) -> None:
        self.open: list[Span] = []
        self.ended: list[tuple[Span, int]] = []
        self.threads: set[str] = set()

    def outer(self) -> Any:
        return "outer"

    def start(self, span: Span) -> Any:
        self.threads.add(threading.current_thread().name)
        self.open.append(span)
        return f"handle {len(self.open)}"

    def end(self, span: Span, end_ns: int) -> None:
        self.ended.append((span, end_ns))

    def named(self, name: str) -> Span:
        (span,) = [span for span, _ in self.ended if span.name == name]
        return span


@pytest.fixture
def recorder():
    made = Recorder()
    made.follower = SpanFollower(made, texts=True)
    made.follower.open()
    yield made
    made.follower.close()


@lmnb.function
def inner(s):
    s += lmnb.gen("detail")


@lmnb.function
def judge(s, essay):
    s += lmnb.user(essay)
    forks = s.fork(2)
    forks += lmnb.gen("note", regex="[a-z]+")
    forks.join()
    inner()
    s += lmnb.assistant(lmnb.select("verdict", choices=["good", "bad"]))


def run(program: Any, *args: Any, **kwargs: Any) -> lmnb.ProgramState:
    state = program.run(*args, **kwargs)
    state.run.wait(30)
    return state


def test_a_program_its_branches_and_its_generations_are_spans(recorder):
    state = run(judge, "An essay.", backend=ScriptedBackend({"note": "fine", "detail": "small thing"}))
    assert recorder.follower.flush()
    assert len(recorder.ended) == len(recorder.open) == 8
    root = recorder.named("judge")
    assert (root.kind, root.parent, root.outer) == ("program", None, "outer")
    assert root.attributes["lmnb.run"] == state.run.id
    assert root.attributes["lmnb.status"] == "done"
    assert [name for name, _, _ in root.events] == ["join"]
    for label in ("0.0", "0.1"):
        assert recorder.named(f"branch {label}").parent is root
    notes = [span for span, _ in recorder.ended if span.name == "gen note"]
    assert [span.parent.name for span in notes] == ["branch 0.0", "branch 0.1"]
    assert {span.attributes["lmnb.constraint"] for span in notes} == {"regex"}
    assert {span.outputs for span in notes} == {"fine"}
    assert all("An essay." in span.inputs for span in notes), "a branch starts with what its parent has said"
    called = recorder.named("inner")
    assert (called.kind, called.parent) == ("program", root)
    assert recorder.named("gen detail").attributes["gen_ai.usage.output_tokens"] > 0
    chosen = recorder.named("select verdict")
    assert chosen.outputs in ("good", "bad")
    assert chosen.attributes["lmnb.choices"] == 2
    assert recorder.threads == {"lmnb-spans"}


def test_spans_lie_in_their_parents_and_end_after_they_start(recorder):
    run(judge, "An essay.", backend=ScriptedBackend("x", token_delay=0.001))
    assert recorder.follower.flush()
    ends = {id(span): end for span, end in recorder.ended}
    for span, end in recorder.ended:
        assert span.start_ns <= end
        if span.parent is not None:
            assert span.parent.start_ns <= span.start_ns
            assert end <= ends[id(span.parent)]


def test_tokens_are_counted_once(recorder):
    backend = ScriptedBackend({"note": "fine words here", "detail": "small"})
    state = run(judge, "An essay.", backend=backend)
    assert recorder.follower.flush()
    account = [event for event in state.run.events if type(event).__name__ == "GenFinished"]
    attributes = [span.attributes for span, _ in recorder.ended if span.kind == "gen"]
    for name, field in (("lmnb.tokens.reused", "reused"), ("lmnb.tokens.computed", "computed")):
        assert sum(a[name] for a in attributes) == sum(getattr(event, field) for event in account)


def test_what_fails_and_what_is_stopped_is_told(recorder):
    run(inner, backend=ScriptedBackend(RuntimeError("no more words")))
    assert recorder.follower.flush()
    root = recorder.named("inner")
    assert root.failed
    assert "no more words" in root.error
    assert recorder.named("gen detail").failed
    recorder.ended.clear()

    state = inner.run(backend=ScriptedBackend("word " * 200, token_delay=0.05), stream=True)
    next(state.text_iter("detail"))
    state.run.cancel()
    state.run.wait(30)
    assert recorder.follower.flush()
    root = recorder.named("inner")
    assert (root.failed, root.attributes["lmnb.status"]) == (False, "cancelled")


def test_without_texts_no_word_of_a_prompt_leaves():
    recorder = Recorder()
    follower = SpanFollower(recorder, texts=False)
    follower.open()
    run(judge, "A private essay.", backend=ScriptedBackend({"note": "hushed", "detail": "hushed"}))
    assert follower.flush()
    follower.close()
    assert len(recorder.ended) == 8
    for span, _ in recorder.ended:
        assert span.inputs is None
        assert span.outputs is None
        assert "private" not in repr(span.attributes)
        assert "hushed" not in repr(span.attributes)


def test_texts_leave_without_keys_and_not_endless(recorder, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789abcdef")

    @lmnb.function
    def long(s):
        s += lmnb.gen("x", max_tokens=50_000)

    run(long, backend=ScriptedBackend("it is sk-0123456789abcdef " + "word " * 10_000))
    assert recorder.follower.flush()
    text = recorder.named("gen x").outputs
    assert text.startswith("it is *** word")
    assert len(text) < LONGEST + 100
    assert "more characters" in text


def test_a_broken_recorder_stops_neither_the_run_nor_the_next_span(caplog):
    class Broken(Recorder):
        def outer(self) -> Any:
            raise RuntimeError("outer")

        def start(self, span: Span) -> Any:
            if span.kind == "branch":
                raise RuntimeError("start")
            return super().start(span)

    recorder = Broken()
    follower = SpanFollower(recorder, texts=True)
    follower.open()
    with caplog.at_level(logging.ERROR, "lmnb"):
        state = run(judge, "x", backend=ScriptedBackend())
        assert follower.flush()
    follower.close()
    assert state.error() is None
    assert "a span could not be started" in caplog.text
    assert recorder.named("judge").handle
    assert recorder.named("branch 0.0").handle is None


def test_nothing_is_recorded_after_the_end():
    recorder = Recorder()
    follower = SpanFollower(recorder, texts=True)
    follower.open()
    follower.close()
    run(inner, backend=ScriptedBackend())
    assert follower.flush()
    assert recorder.open == []


@lmnb.function
def asked(s):
    s += "First: " + lmnb.select("pick", choices=["a", "b"]) + " Count: " + lmnb.gen("detail") + "."


def test_a_branch_from_a_token_has_the_prompt_of_its_origin(recorder):
    state = run(asked, backend=ScriptedBackend("one two three"))
    variant = state.branch_at("detail", 1, " TWO")
    variant.sync()
    variant.branch_at("detail", 2, " 3").sync()
    assert state.run.wait(30)
    assert recorder.follower.flush()
    origin, *others = [span for span, _ in recorder.ended if span.name == "gen detail"]
    assert len(others) == 2
    assert origin.inputs in ("First: a Count: ", "First: b Count: ")
    assert [span.inputs for span in others] == [origin.inputs] * 2
    assert recorder.named("branch 0~1~1").outputs == origin.inputs + "one TWO 3."


def test_a_branch_from_a_token_of_a_run_that_was_over_is_a_span_of_its_own(recorder, caplog):
    state = run(inner, backend=ScriptedBackend("one two three"))
    assert recorder.follower.flush()
    before = len(recorder.ended)
    state.branch_at("detail", 1, " TWO").sync()
    assert state.run.wait(30)
    assert recorder.follower.flush()
    assert [span.name for span, _ in recorder.ended[before:]] == ["gen detail", "branch 0~1"]
    branch = recorder.named("branch 0~1")
    assert branch.parent is None
    assert (branch.outputs, branch.attributes["lmnb.status"]) == ("one TWO three", "done")
    assert len(recorder.open) == len(recorder.ended)
    assert caplog.records == []
