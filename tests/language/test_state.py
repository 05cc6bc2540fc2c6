# ruff: noqa: PT012  # the statements of a block are what is tested
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, ProgramError, UnknownVariableError
from lmnb.language import open_state

State = sgl.ProgramState


@pytest.fixture
def s(backend: ScriptedBackend) -> State:
    return open_state(backend)


CHAT = "<|system|>\nbe kind<|end|>\n<|user|>\n hi <|end|>\n<|assistant|>\nok then<|end|>\n"


def functions(s: State) -> None:
    s += sgl.system("be kind")
    s += sgl.user(" hi ")
    s += sgl.assistant(sgl.gen("x") + " then")


def markers(s: State) -> None:
    s += sgl.system_begin() + "be kind" + sgl.system_end()
    s += sgl.user_begin()
    s += " hi "
    s += sgl.user_end()
    s += sgl.assistant_begin() + sgl.gen("x")
    s += " then" + sgl.assistant_end()


def methods(s: State) -> None:
    s.system("be kind")
    s.user(" hi ")
    s.assistant(sgl.gen("x") + " then")


def methods_added(s: State) -> None:
    s += s.system("be kind")
    s += s.user(" hi ") + s.assistant(sgl.gen("x") + " then")


def blocks(s: State) -> None:
    with s.system():
        s += "be kind"
    with s.user():
        s += " hi "
    with s.assistant():
        s += sgl.gen("x")
        s += " then"


@pytest.mark.parametrize("body", [functions, markers, methods, methods_added, blocks])
def test_every_spelling_of_a_chat_is_the_same(s: State, body: Callable[[State], None]) -> None:
    body(s)
    assert s.text() == CHAT
    assert s.messages() == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi "},
        {"role": "assistant", "content": "ok then"},
    ]
    assert s["x"] == "ok"


def test_messages_hold_closed_turns_only(s: State) -> None:
    s += sgl.user("q") + sgl.assistant_begin() + "half"
    assert s.messages() == [{"role": "user", "content": "q"}]
    s.messages()[0]["content"] = "changed"
    assert s.messages()[0]["content"] == "q"


def test_a_template_may_add_a_default_system_turn() -> None:
    s = open_state(ScriptedBackend(default_system="Be short."))
    s += sgl.user("q")
    assert s.text() == "<|system|>\nBe short.<|end|>\n<|user|>\nq<|end|>\n"


@pytest.mark.parametrize("wrong", [None, 3, ["a"], b"x", object()])
def test_only_text_and_expressions_can_be_appended(s: State, wrong: Any) -> None:
    with pytest.raises(ProgramError):
        s += wrong
    s += "fine"
    assert s.text() == "fine"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (sgl.user_begin(), sgl.assistant_begin()),
        (sgl.user_begin(), sgl.user("again")),
        ("", sgl.user("a" + sgl.assistant("b"))),
        ("", sgl.user_end()),
        (sgl.user_begin(), sgl.assistant_end()),
    ],
)
def test_roles_out_of_order_are_refused_whole(s: State, first: Any, second: Any) -> None:
    s += first
    before = s.text()
    with pytest.raises(ProgramError):
        s += "not added" + second
    assert s.text() == before


def test_a_role_block_is_closed_when_it_raises(s: State) -> None:
    with pytest.raises(ZeroDivisionError), s.user():
        s += "half"
        raise ZeroDivisionError
    s += sgl.assistant("next")
    assert s.text() == "<|user|>\nhalf<|end|>\n<|assistant|>\nnext<|end|>\n"


def test_a_nested_role_in_a_block_is_refused_and_the_block_closed(s: State) -> None:
    with pytest.raises(ProgramError, match="nest"), s.user():
        s += "a"
        s += sgl.assistant("b")
    assert s.messages() == [{"role": "user", "content": "a"}]


def test_a_block_whose_role_was_closed_by_hand_closes_nothing_more(s: State) -> None:
    with s.user():
        s += "a"
        s += sgl.user_end()
        s += sgl.user("b")
    assert [message["content"] for message in s.messages()] == ["a", "b"]


def test_s_user_behind_text_is_refused_since_it_was_added_already(s: State) -> None:
    with pytest.raises(ProgramError, match="when it is called"):
        s += "intro " + s.user("q")


def test_a_turn_of_another_state_can_be_added(backend: ScriptedBackend, s: State) -> None:
    other = open_state(backend)
    s += other.user("q")
    assert s.text() == other.text() == "<|user|>\nq<|end|>\n"


def test_a_block_without_with_is_refused(s: State) -> None:
    with pytest.raises(ProgramError):
        s += s.user()


def test_variables() -> None:
    gate = threading.Event()
    s = open_state(ScriptedBackend(lambda call: "late" if gate.wait(30) else "never"))
    s["city"] = "Paris"
    s.set_var("n", 3)
    assert (s["city"], s.get_var("n")) == ("Paris", 3)
    assert "city" in s
    assert "nothing" not in s
    assert 3 not in s
    s += sgl.gen("x")
    assert "x" not in s  # and does not wait
    gate.set()
    assert s["x"] == "late"
    assert "x" in s
    s["x"] = "mine"
    assert s["x"] == "mine"
    with pytest.raises(ArgumentError):
        s[3] = "no"  # type: ignore[index]


def test_unknown_variables_raise_at_once(s: State) -> None:
    s["city"] = "Paris"
    for read in (s.get_var, s.__getitem__):
        with pytest.raises(UnknownVariableError, match="it has: city"):
            read("town")
    with pytest.raises(KeyError):
        s["town"]
    assert s.get_meta_info("town") is None
    assert s.get_meta_info("city") is None


def test_the_last_generation_of_a_name_counts() -> None:
    s = open_state(ScriptedBackend(["one", "two"]))
    s += sgl.gen("x") + " " + sgl.gen("x")
    assert s["x"] == "two"
    assert s.text() == "one two"


def test_meta_info() -> None:
    s = open_state(ScriptedBackend("one two three END four"))
    s += "prompt of five words " + sgl.gen("stopped", stop="END")
    s += sgl.gen("cut", max_tokens=2)
    stopped, cut = s.get_meta_info("stopped"), s.get_meta_info("cut")
    assert stopped is not None
    assert cut is not None
    assert stopped["finish_reason"] == {"type": "stop", "matched": "END"}
    assert cut["finish_reason"] == {"type": "length", "length": 2}
    assert cut["completion_tokens"] == 2
    assert cut["prompt_tokens"] > stopped["prompt_tokens"]
    assert cut["cached_tokens"] > 0
    assert stopped["id"] != cut["id"]
    assert stopped["e2e_latency"] > 0
    assert {"first_token_seconds"} <= set(stopped)
    assert "output_token_logprobs" not in stopped


def test_log_probabilities_when_asked_for() -> None:
    s = open_state(ScriptedBackend("one two"))
    s += "a b c"
    s += sgl.gen("x", return_logprob=True, logprob_start_len=1, top_logprobs_num=1, return_text_in_logprobs=True)
    meta = s.get_meta_info("x")
    assert meta is not None
    assert [row[2] for row in meta["output_token_logprobs"]] == ["one", " two"]
    assert [row[2] for row in meta["input_token_logprobs"]] == [" b", " c"]
    assert all(isinstance(row[0], float) and isinstance(row[1], int) for row in meta["output_token_logprobs"])
    assert [top[0][2] for top in meta["output_top_logprobs"]] == ["one", " two"]
    s += sgl.gen("y", return_logprob=True)
    plain = s.get_meta_info("y")
    assert plain is not None
    assert plain["input_token_logprobs"] == []
    assert [row[2] for row in plain["output_token_logprobs"]] == [None, None]


def test_several_samples() -> None:
    backend = ScriptedBackend(["first", "second", "third"])
    s = open_state(backend)
    s += "p " + sgl.gen("x", n=3, seed=7) + "."
    assert s["x"] == ["first", "second", "third"]
    assert s.text() == "p first."
    assert [call.params.seed for call in backend.calls if call.params] == [7, 8, 9]


def test_var_scope(s: State) -> None:
    with s.var_scope("all"):
        s += "a " + sgl.gen("x")
        with s.var_scope("inner"):
            s += "b"
        s += sgl.user("c")
    s += "after"
    assert s["inner"] == "b"
    assert s["all"] == "a okb<|user|>\nc<|end|>\n"
    assert "".join(s.text_iter("all")) == s["all"]


def test_var_scope_ends_when_its_block_raises(s: State) -> None:
    with pytest.raises(ZeroDivisionError), s.var_scope("v"):
        s += "half"
        raise ZeroDivisionError
    s += "rest"
    assert s["v"] == "half"


def test_reading_a_scope_from_inside_is_refused_instead_of_waiting_forever(s: State) -> None:
    with s.var_scope("v"):
        s += "x"
        with pytest.raises(ProgramError, match="still open"):
            s["v"]
        child = s.fork(1)[0]
        with pytest.raises(ProgramError, match="still open"):
            child["v"]
    assert s["v"] == "x"
    assert child["v"] == "x"


def test_appending_never_waits_and_repr_neither() -> None:
    gate = threading.Event()
    s = open_state(ScriptedBackend(lambda call: "slow words here" if gate.wait(30) else "too late"))
    s += "now " + sgl.gen("x")
    assert "running" in repr(s)
    gate.set()
    assert s["x"] == "slow words here"
    s.sync()
    assert repr(s) == "ProgramState('now slow words here')"


def test_generated_text_is_used_in_later_text(s: State) -> None:
    s += sgl.gen("x")
    s += f" and {s['x']}"
    assert s.text() == "ok and ok"


def test_constants_reach_the_backend_joined_and_as_they_are() -> None:
    backend = ScriptedBackend("x")
    s = open_state(backend)
    s += "braces {a} $b " + "and " + sgl.gen()
    s.sync()
    assert backend.prompts() == ["braces {a} $b and "]


def test_a_backend_that_does_not_stream_still_shows_its_text() -> None:
    class Whole(ScriptedBackend):
        def new_context(self) -> Any:
            context = super().new_context()
            generate = context.generate

            async def silent(params: Any, *, on_delta: Any, **rest: Any) -> Any:
                return await generate(params, on_delta=lambda delta: None, **rest)

            context.generate = silent  # type: ignore[method-assign]
            return context

    s = open_state(Whole("all at once"))
    s += "p " + sgl.gen("x")
    assert s.text() == "p all at once"
    assert "".join(s.text_iter("x")) == "all at once"
