from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

import lmnb as sgl
from lmnb.errors import ProgramError
from lmnb.language.expressions import Expr, ExprList, Gen, RoleBegin, RoleEnd, Text, flatten


def test_sums_are_flat_and_keep_order() -> None:
    a, b = sgl.gen("a"), sgl.gen("b")
    total = "x" + a + "y" + (b + "z")
    assert flatten(total) == (Text("x"), a, Text("y"), b, Text("z"))
    assert flatten("x" + sgl.user("q" + a)) == (Text("x"), RoleBegin("user"), Text("q"), a, RoleEnd("user"))
    assert all(not isinstance(node, ExprList) for node in flatten(total))


def test_adding_changes_neither_side() -> None:
    left = "x" + sgl.gen("a")
    before = flatten(left)
    _ = left + "y"
    _ = "z" + left
    assert flatten(left) == before


def test_nodes_are_immutable() -> None:
    node = sgl.gen("a")
    assert isinstance(node, Gen)
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [None, 3, 1.5, ["text"], b"bytes"])
def test_other_things_cannot_be_added(wrong: object) -> None:
    with pytest.raises(ProgramError, match="only text and expressions"):
        sgl.gen("a") + wrong
    with pytest.raises(ProgramError, match="only text and expressions"):
        wrong + sgl.gen("a")


TEXTS_OF = {
    "f-string": lambda expr: f"answer: {expr}",
    "f-string with a width": lambda expr: f"answer: {expr:>9}",
    "format": "answer: {}".format,
    "percent": lambda expr: "answer: %s" % expr,  # noqa: UP031
    "str": str,
}


@pytest.mark.parametrize("text_of", TEXTS_OF.values(), ids=TEXTS_OF)
@pytest.mark.parametrize(
    ("expr", "words"),
    [
        (sgl.gen("a", temperature=0), "gen('a')"),
        (sgl.gen(), "gen()"),
        (sgl.select("b", ["x", "y"]), "select('b', ...)"),
        (sgl.user("q" + sgl.gen("a")), "(user_begin() + 'q' + gen('a') + ...)"),
    ],
)
def test_text_cannot_swallow_an_expression(expr: Expr, words: str, text_of: Callable[[Expr], str]) -> None:
    with pytest.raises(ProgramError) as error:
        text_of(expr)
    assert str(error.value).startswith(f"{words} is not text yet")
    assert "SamplingOptions" not in str(error.value)


def test_a_repr_tells_what_was_given() -> None:
    assert "SamplingOptions(temperature=0)" in repr("x" + sgl.gen("a", temperature=0))


def test_a_role_without_text_is_an_empty_turn() -> None:
    assert flatten(sgl.user()) == (RoleBegin("user"), RoleEnd("user"))
    assert flatten(sgl.assistant_begin() + sgl.assistant_end()) == (RoleBegin("assistant"), RoleEnd("assistant"))
