"""Branches that part from inside a generation: what they keep, how they go on, and what of the program follows."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from patience import until

from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, CancelledError, ProgramError
from lmnb.language import assistant, function, gen, open_state, select, separate_reasoning, user
from lmnb.language import run as run_module
from lmnb.language.events import BranchOpened, GenFinished, RunFinished, RunResumed, TokensGenerated
from lmnb.language.saved_run import SavedRun
from lmnb.language.state import ProgramState

SEA = "the sea at night is dark"


def state_of(replies: Any = SEA, **options: Any) -> tuple[ScriptedBackend, ProgramState]:
    backend = ScriptedBackend(replies, **options)
    return backend, open_state(backend)


def opened(state: ProgramState) -> BranchOpened:
    return next(e for e in state.run.events if isinstance(e, BranchOpened) and e.branch == state.stream.branch.id)


def pieces(state: ProgramState) -> list[tuple[str, str]]:
    branch = state.stream.branch.id
    told = [e for e in state.run.events if isinstance(e, TokensGenerated) and e.branch == branch]
    return [(e.text, part[3] if len(part) > 3 else "free") for e in told for part in e.parts]


def test_a_branch_keeps_the_tokens_before_and_goes_on_behind_the_text() -> None:
    backend, s = state_of()
    s += user("Say it.") + assistant(gen("line"))
    s.run.finish()
    t = s.branch_at("line", 2, " under the moon")
    assert t["line"] == "the sea under the moon dark"
    assert s["line"] == SEA
    assert t.text() == "<|user|>\nSay it.<|end|>\n<|assistant|>\nthe sea under the moon dark<|end|>\n"
    assert t.messages()[-1] == {"role": "assistant", "content": "the sea under the moon dark"}
    call = backend.calls[-1]
    assert (call.prompt, call.begun) == ("<|user|>\nSay it.<|end|>\n<|assistant|>\n", "the sea under the moon")
    assert pieces(t) == [
        ("the", "kept"),
        (" sea", "kept"),
        (" under", "given"),
        (" the", "given"),
        (" moon", "given"),
        (" dark", "free"),
    ]
    assert t.run is s.run
    assert (opened(t).label, opened(t).parent, opened(t).at, opened(t).note) == ("0~1", 0, [0, len("the sea")], None)


def test_counts_say_what_was_reused_and_only_what_was_generated_now() -> None:
    _, s = state_of()
    s += "Say: " + gen("line")
    s.run.finish()
    t = s.branch_at("line", 2, " wind")
    t.sync()
    end = next(e for e in reversed(s.run.events) if isinstance(e, GenFinished))
    prompt = 3  # Say, :, space
    assert (end.reused, end.computed, end.generated) == (prompt + 2, 1, 3)
    meta = t.get_meta_info("line")
    assert meta is not None
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (prompt + 3, prompt + 2, 3)


def test_what_was_appended_without_reading_follows_and_variables_are_the_branchs_own() -> None:
    backend, s = state_of({"city": "Oslo it is", "size": "rather big", "": "?"})
    s["country"] = "Norway"
    s += user("A city?") + assistant(gen("city"))
    s += user("How big?") + assistant(gen("size") + select("sure", choices=["yes", "no"]))
    s["late"] = 7
    s.run.finish()
    t = s.branch_at("city", 0, "Bergen")
    assert (t["city"], t["size"], t["country"], t["late"]) == ("Bergen it is", "rather big", "Norway", 7)
    assert t["sure"] in ("yes", "no")
    assert backend.prompts()[-1].count("Bergen it is") == 1
    assert s["city"] == "Oslo it is"
    assert opened(t).note is None


def test_what_python_read_before_is_not_repeated_and_the_branch_says_so() -> None:
    _, s = state_of({"a": "one two", "b": "three"})
    s += user("First?") + assistant(gen("a"))
    s += user(f"You said {s['a']}.") + assistant(gen("b"))
    s.run.finish()
    t = s.branch_at("a", 1, " more")
    t.sync()
    assert t.text().endswith("one more<|end|>\n")
    assert "b" not in t
    assert "read a value" in (opened(t).note or "")
    t += user("And?") + assistant(gen("b"))  # the rest is written in Python
    assert t["b"] == "three"


def test_forks_are_not_repeated_and_a_forks_child_can_be_parted_from() -> None:
    _, s = state_of({"a": "one two", "b": "three four five"})
    s += gen("a")
    forks = s.fork(2)
    forks += lambda i: f" {i}: " + gen("b")
    forks.join()
    s.run.finish()
    t = s.branch_at("a", 1, " more")
    assert t["a"] == "one more"
    assert "fork" in (opened(t).note or "")
    u = forks[1].branch_at("b", 1, " and")
    assert u.text() == "one two 1: three and five"
    assert (opened(u).parent, opened(u).label) == (2, "0.1~1")
    assert u["a"] == "one two"  # inherited


def test_the_run_goes_on_and_ends_as_it_did() -> None:
    _, s = state_of()
    s += gen("line")
    s.run.finish()
    first = s.run.events[-1]
    t = s.branch_at("line", 1)
    t.sync()
    assert s.run.wait(30)
    kinds = [type(e) for e in s.run.events]
    assert kinds.count(RunFinished) == 2
    assert kinds.index(RunResumed) == kinds.index(RunFinished) + 1
    last = s.run.events[-1]
    assert isinstance(first, RunFinished)
    assert isinstance(last, RunFinished)
    assert last.status == first.status == "done"
    assert last.seconds >= first.seconds
    again = SavedRun.from_json(s.run.to_json())
    assert again.events == s.run.events
    s.branch_at("line", 2)
    assert s.run.wait(30)
    assert [e.label for e in s.run.events if isinstance(e, BranchOpened)] == ["0~1", "0~2"]


def test_while_the_original_still_runs() -> None:
    _, s = state_of(" ".join(f"w{i}" for i in range(100)), token_delay=0.02)
    s += gen("words", max_tokens=100)
    t = s.branch_at("words", 3, " THREE")  # waits for the token
    assert not s.stream.drained
    assert t["words"].startswith("w0 w1 w2 THREE w4 w5")
    assert len(t["words"].split()) == len(s["words"].split()) == 100
    s.run.finish()


def test_a_branch_parts_from_a_branch() -> None:
    _, s = state_of()
    s += gen("line")
    s.run.finish()
    t = s.branch_at("line", 2, " wind")
    t.sync()
    u = t.branch_at("line", 4, " was")
    assert u["line"] == "the sea wind night was dark"
    assert opened(u).label == "0~1~1"
    assert [origin for _, origin in pieces(u)] == ["kept"] * 4 + ["given", "free"]


def test_a_conversation_can_be_parted_from_in_any_of_its_turns() -> None:
    backend, s = state_of({"a": "one two", "b": "three four"})
    s += user("1?") + assistant(gen("a"))
    s.run.finish()
    later = open_state(backend, continue_from=s)
    later += user("2?") + assistant(gen("b"))
    later.run.finish()
    t = later.branch_at("a", 1, " TWO")
    assert t.text().endswith("one TWO<|end|>\n")
    u = later.branch_at("b", 1, " FOUR")
    assert "one two" in u.text()
    assert (t.run, u.run) == (s.run, later.run)


def test_the_generations_own_options_go_on() -> None:
    backend, s = state_of("a b c d e f g h", name="m")
    s += gen("x", max_tokens=5, stop=" g", seed=3, temperature=0.5)
    s.run.finish()
    t = s.branch_at("x", 2, " X")
    assert t["x"] == "a b X d e"
    params = backend.calls[-1].params
    assert params == backend.calls[0].params
    drawn = s.branch_at("x", 2)
    drawn.sync()
    again = backend.calls[-1].params
    assert params is not None
    assert again is not None
    assert again.seed != params.seed  # drawn anew, so with another seed
    with pytest.raises(ArgumentError, match="may have 3 more"):
        s.branch_at("x", 2, " one two three four")


def test_reasoning_is_parted_from_too() -> None:
    """Its tokens count, and the branch's answer and reasoning are separated anew."""
    _, s = state_of("<think>hm hm</think>so it is")
    s += separate_reasoning(gen("x"), model_type="deepseek-r1")
    s.run.finish()
    tokens = [token.text for token in s.generated("x")]
    assert "".join(tokens) == "<think>hm hm</think>so it is"
    assert (s["x"], s["x_reasoning_content"]) == ("so it is", "hm hm")
    t = s.branch_at("x", tokens.index(" hm"), " well")
    assert (t["x"], t["x_reasoning_content"]) == ("so it is", "hm well")
    u = s.branch_at("x", tokens.index(" it"), " they")
    assert (u["x"], u["x_reasoning_content"]) == ("so they is", "hm hm")
    assert opened(u).at == [0, 0]  # views show the answer only, so that no place in it is told


def test_what_cannot_be_is_said_at_once() -> None:
    _, s = state_of()
    s += gen("line") + select("choice", choices=["a", "b"])
    s["given"] = "text"
    s.run.finish()
    for token, what in ((-1, "cannot be -1"), (7, "has 6 tokens"), ("1", "whole number")):
        with pytest.raises(ArgumentError, match=what):
            s.branch_at("line", token)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="must be text"):
        s.branch_at("line", 1, 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="give one of them"):
        s.branch_at("line", 1, "a", token_id=3)
    for token_id in (-1, 10_000, 2**40):
        with pytest.raises(ArgumentError, match=rf"token_id must lie in \[0, \d+\).* not {token_id}$"):
            s.branch_at("line", 1, token_id=token_id)
    for name in ("choice", "given"):
        with pytest.raises(ProgramError, match="not generated"):
            s.branch_at(name, 0)
    assert s.run.status == "done"


def test_cancel_stops_the_branch_of_a_run_that_was_over() -> None:
    _, s = state_of(" ".join(f"w{i}" for i in range(500)), token_delay=0.01)
    s += gen("words", max_tokens=5)
    s.run.finish()
    _, s = state_of(" ".join(f"w{i}" for i in range(500)), token_delay=0.01)
    s += gen("words", max_tokens=500)
    until(lambda: len(s.text_so_far.split()) > 2)
    s.run.cancel()
    s.run.finish()
    assert s.run.wait(30)
    assert s.run.status == "cancelled"
    t = s.branch_at("words", 2, " X")
    until(lambda: len(t.text_so_far.split()) >= 5)
    assert s.run.status == "running"
    s.run.cancel()
    assert s.run.wait(30)
    with pytest.raises(CancelledError):
        t.sync()
    assert t["words"].startswith("w0 w1 X w3")
    assert s.run.status == "cancelled"


def test_by_text_where_a_backend_knows_no_tokens() -> None:
    class TextBackend(ScriptedBackend):
        def __init__(self, *args: Any, **options: Any) -> None:
            from dataclasses import replace

            super().__init__(*args, **options)
            self.capabilities = replace(self.capabilities, resumes=False)

    backend = TextBackend([SEA, " and more words", "{}"])
    s = open_state(backend)
    s += "Say: " + gen("line", max_tokens=9)
    s.run.finish()
    t = s.branch_at("line", 2, " wind")
    assert t["line"] == "the sea wind and more words"
    assert backend.prompts()[-1] == "Say: the sea wind"
    params = backend.calls[-1].params
    assert params is not None
    assert params.max_new_tokens == 7
    assert [origin for _, origin in pieces(t)] == ["kept", "given", "free", "free", "free"]
    u = open_state(backend)
    u += gen("json", json_schema={"type": "object"})
    u.run.finish()
    with pytest.raises(ProgramError, match="json schema constrains"):
        u.branch_at("json", 1, "x")


def test_tokens_and_what_else_was_likely_can_be_looked_at() -> None:
    _, s = state_of("the sea", alternatives={"sea": ["wind", "moon"]})
    s += gen("line", return_logprob=True, top_logprobs_num=3)
    tokens = s.generated("line")
    assert tokens.text == "the sea"
    assert [token.index for token in tokens] == [0, 1]
    assert [text for text, _ in tokens[1].alternatives] == [" sea", " wind", " moon"]
    assert tokens.unsure() in tokens
    assert " wind" in tokens._repr_html_()
    s.run.finish()
    t = s.branch_at("line", 1, " wind")
    assert [text for text, _ in t.generated("line")[0].alternatives] == ["the"]  # kept with the token


def test_in_a_compiled_program_all_that_follows_is_repeated_with_the_branchs_values() -> None:
    @function
    def trip(s: ProgramState, country: str) -> None:
        s += user(f"A city in {country}?") + assistant(gen("city"))
        s += user("What is in " + s["city"] + "?") + assistant(gen("sight"))

    backend = ScriptedBackend({"city": "Oslo it is", "sight": "a fjord"})
    s = trip.compile().run(country="Norway", backend=backend)
    s.sync()
    t = s.branch_at("city", 0, "Bergen")
    assert t["sight"] == "a fjord"
    assert "What is in Bergen it is?" in t.text()
    assert opened(t).note is None


def test_a_run_does_not_hold_the_rows_of_a_great_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MOST_KEPT", 3)

    @function
    def row(s: ProgramState, i: int) -> None:
        s += f"{i}: " + gen("x")

    states = row.run_batch([{"i": i} for i in range(8)], backend=ScriptedBackend("one two"))
    run = states[0].run
    assert run.wait(30)
    assert len(run.generated) == 8
    last = states[-1]
    del states
    gc.collect()
    assert len(run.generated) == 4
    assert last.branch_at("x", 1, " TWO")["x"] == "one TWO"


def test_generations_are_counted_in_the_branch_where_views_see_them() -> None:
    """A state whose run is over goes on in a run of its own."""
    _, s = state_of({"a": "one two", "b": "three four"})
    s += gen("a")
    s.run.finish()
    s += ". " + gen("b")
    s.sync()
    assert s.run.wait(30)
    t = s.branch_at("b", 1, " FOUR")
    assert (t.text(), opened(t).at) == ("one two. three FOUR", [0, len("three")])
    assert (0, 0) in t.run.generated
