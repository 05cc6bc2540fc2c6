from __future__ import annotations

from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, NoBackendError, ProgramError
from lmnb.language.defaults import Defaults
from lmnb.language.program import Program

State = sgl.ProgramState


@sgl.function
def ask(s: State, question: str, style: str = "plain", *, note: str = "") -> str:
    """Ask."""
    s += f"{question}|{style}|{note}|" + sgl.gen("x")
    return question


def test_arguments_and_return_value(backend: ScriptedBackend) -> None:
    state = ask.run("q", note="n")
    assert state.text() == "q|plain|n|ok"
    assert state.ret_value == "q"
    assert ask("q", style="s").text() == "q|s||ok"
    assert (ask.name, ask.__doc__, ask.arg_names) == ("ask", "Ask.", ["question", "style", "note"])
    assert isinstance(ask, sgl.SglFunction)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("a", "b", "c"), {}), (("a",), {"question": "b"}), (("a",), {"temprature": 1})]
)
def test_arguments_that_do_not_fit(backend: ScriptedBackend, args: tuple[str, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match="ask"):
        ask.run(*args, **kwargs)
    assert not backend.calls


def test_the_state_must_be_named_s() -> None:
    for wrong in (lambda q: None, lambda: None, lambda a, b, s: None):
        with pytest.raises(ProgramError, match="`s`"):
            sgl.function(wrong)

    async def coroutine(s: State) -> Any:
        yield s

    def generator(s: State) -> Any:
        yield s

    for wrong_kind in (coroutine, generator):
        with pytest.raises(ProgramError, match="no yield"):
            sgl.function(wrong_kind)


def test_methods_are_programs_of_their_object(backend: ScriptedBackend) -> None:
    class Judge:
        def __init__(self, name: str) -> None:
            self.name = name

        @sgl.function
        def judge(self, s: State, essay: str) -> None:
            s += self.name + ":" + essay + sgl.gen("x")

    a, b = Judge("a"), Judge("b")
    assert a.judge.run("1").text() == "a:1ok"
    assert b.judge("2").text() == "b:2ok"
    states = a.judge.run_batch([("x",), {"essay": "y"}])
    assert [state.text() for state in states] == ["a:xok", "a:yok"]
    assert a.judge.bind(essay="z").run().text() == "a:zok"


def test_own_parameters_win_over_run_options(backend: ScriptedBackend) -> None:
    @sgl.function
    def sample(s: State, n: int, temperature: float = 0.5, stream: str = "no") -> None:
        s += f"{n} {temperature} {stream} " + sgl.gen("x")

    state = sample.run(n=3, temperature=0.1, stream="yes", max_new_tokens=7)
    assert state.text() == "3 0.1 yes ok"
    (call,) = backend.calls
    assert call.params is not None
    assert (call.params.temperature, call.params.max_new_tokens) == (1.0, 7)
    assert [state.text() for state in sample.run_batch([{"n": 2}])] == ["2 0.5 no ok"]


def test_run_options_are_the_programs_defaults(backend: ScriptedBackend) -> None:
    ask.run("q", temperature=0, seed=5, stop="E", repetition_penalty=1.5, top_k=3).sync()
    (call,) = backend.calls
    assert call.params is not None
    assert (call.params.temperature, call.params.seed, call.params.stop) == (0, 5, ("E",))
    assert (call.params.repetition_penalty, call.params.top_k) == (1.5, 3)


def test_a_program_may_carry_defaults_and_a_backend() -> None:
    backend = ScriptedBackend("mine")
    program = Program(ask.func, defaults=Defaults(temperature=0.0, max_new_tokens=9), backend=backend)
    program.run("q", max_new_tokens=3).sync()
    program.bind(style="s").run("q").sync()
    assert [(c.params.temperature, c.params.max_new_tokens) for c in backend.calls if c.params] == [(0.0, 3), (0.0, 9)]


def test_bind(backend: ScriptedBackend) -> None:
    bound = ask.bind(style="bound", note="n")
    assert bound.run("q").text() == "q|bound|n|ok"
    assert bound.run(question="q", style="ignored").text() == "q|bound|n|ok"
    assert bound.bind(question="fixed").run().text() == "fixed|bound|n|ok"
    assert ask.run("q").text() == "q|plain||ok"
    first = ask.bind(question="fixed")
    assert first.run("positional").text() == "fixed|positional||ok"
    with pytest.raises(ProgramError, match="nope"):
        ask.bind(nope=1)
    with pytest.raises(ProgramError):
        first.run("a", "b", "c")
    with pytest.raises(ProgramError, match="multiple values"):
        first.run("a", style="b")


def test_speculation_survives_bind() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: State, a: int) -> None: ...

    assert program.num_api_spec_tokens == program.bind(a=1).num_api_spec_tokens == 64


def test_no_backend_and_no_such_backend() -> None:
    with pytest.raises(NoBackendError, match="Runtime"):
        ask.run("q")
    with pytest.raises(ArgumentError):
        sgl.set_default_backend("smollm2")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        ask.run("q", backend="smollm2")


def test_backend_calls(backend: ScriptedBackend) -> None:
    assert sgl.flush_cache() is True
    assert backend.flushes == 1
    assert sgl.get_server_info()["model"] == "scripted"
    sgl.set_default_backend(None)
    assert sgl.flush_cache() is False
    assert sgl.flush_cache(backend) is True
    assert sgl.get_server_info(backend)["calls"] == 0
    with pytest.raises(NoBackendError):
        sgl.get_server_info()


def test_the_body_runs_before_run_returns_and_generations_may_not(backend: ScriptedBackend) -> None:
    slow = ScriptedBackend("a b c", token_delay=0.05)
    state = ask.run("q", backend=slow)
    assert state.ret_value == "q"
    assert "x" not in state
    assert state["x"] == "a b c"


def test_use_thread_false_raises_at_the_step_itself() -> None:
    reached: list[str] = []

    @sgl.function
    def program(s: State) -> None:
        s += "a " + sgl.gen("x")
        assert "x" in s
        s += sgl.gen("bad")
        reached.append("after")

    from lmnb.errors import GenerationError

    with pytest.raises(GenerationError):
        program.run(use_thread=False, backend=ScriptedBackend({"x": "ok", "bad": OSError("x")}))
    assert reached == []


def test_variables_of_any_keyword_programs(backend: ScriptedBackend) -> None:
    @sgl.function
    def program(s: State, *parts: str, **named: str) -> None:
        s += "".join(parts) + str(sorted(named.items()))

    assert program.run("a", "b", c="d", temperature=0).text() == "ab[('c', 'd')]"
