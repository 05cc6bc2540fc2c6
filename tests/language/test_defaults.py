from __future__ import annotations

from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, ProgramError
from lmnb.language.defaults import Defaults
from lmnb.language.expressions import Gen
from lmnb.runtime.request import SamplingParams


def params(defaults: Defaults, template: tuple[str, ...] = (), **options: Any) -> SamplingParams:
    node = sgl.gen("x", **options)
    assert isinstance(node, Gen)
    return defaults.params(node, template)


def test_program_defaults() -> None:
    assert params(Defaults()) == SamplingParams(max_new_tokens=128, temperature=1.0)


@pytest.mark.parametrize(
    ("name", "field", "default", "own"),
    [
        ("max_tokens", "max_new_tokens", 50, 3),
        ("temperature", "temperature", 0.3, 0.0),
        ("top_p", "top_p", 0.9, 0.5),
        ("top_k", "top_k", 40, -1),
        ("min_p", "min_p", 0.1, 0.0),
        ("frequency_penalty", "frequency_penalty", 0.5, 0.0),
        ("presence_penalty", "presence_penalty", 0.5, 0.0),
        ("repetition_penalty", "repetition_penalty", 1.2, 1.0),
        ("ignore_eos", "ignore_eos", True, False),
        ("seed", "seed", 1, 0),
        ("stop_token_ids", "stop_token_ids", (1, 2), (3,)),
    ],
)
def test_a_gen_wins_where_it_says_something(name: str, field: str, default: Any, own: Any) -> None:
    defaults = Defaults().updated({field: default})
    assert getattr(params(defaults), field) == default
    assert getattr(params(defaults, **{name: own}), field) == own


@pytest.mark.parametrize(
    ("program", "own", "expected"),
    [
        ([], None, ("<|im_end|>",)),
        ("END", None, ("END", "<|im_end|>")),
        (["A", "B"], None, ("A", "B", "<|im_end|>")),
        (("A",), None, ("A", "<|im_end|>")),
        ("END", "\n", ("\n", "<|im_end|>")),
        ("END", [], ("<|im_end|>",)),
        (["<|im_end|>"], None, ("<|im_end|>",)),
    ],
)
def test_template_stops_come_last(program: Any, own: Any, expected: tuple[str, ...]) -> None:
    defaults = Defaults().updated({"stop": program})
    assert params(defaults, ("<|im_end|>",), stop=own).stop == expected


def test_number_stops_stand_behind_the_own_ones() -> None:
    assert params(Defaults(), ("<e>",), dtype=int, stop="!").stop == ("!", " ", "\n", "<e>")


def test_stop_lists_are_never_changed() -> None:
    backend = ScriptedBackend(stop=("<|end|>",))
    program_stop, own_stop = ["P"], ["G"]

    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.gen("a")
        s += sgl.gen("b", stop=own_stop)

    for _ in range(3):
        program.run(stop=program_stop, backend=backend).sync()
    assert (program_stop, own_stop) == (["P"], ["G"])
    stops = [call.params.stop for call in backend.calls if call.params]
    assert stops == [("P", "<|end|>"), ("G", "<|end|>")] * 3


def test_unknown_defaults_are_named() -> None:
    with pytest.raises(ProgramError, match="'temprature'"):
        Defaults().updated({"temprature": 1})


@pytest.mark.parametrize("bad", [{"max_tokens": -1}, {"top_p": 0}, {"temperature": -1}, {"n": 0}, {"stop": ""}])
def test_values_out_of_range_raise_where_they_are_appended(backend: ScriptedBackend, bad: dict[str, Any]) -> None:
    seen: list[str] = []

    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        with pytest.raises(ArgumentError):
            s += "never added" + sgl.gen("x", **bad)
        s += "still fine"
        seen.append(s.text())

    program.run().sync()
    assert seen == ["still fine"]
