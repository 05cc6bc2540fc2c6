from __future__ import annotations

import dataclasses

import pytest

import lmnb as sgl
from lmnb.errors import ProgramError
from lmnb.language.expressions import ExprList, Gen, RoleBegin, RoleEnd, Text, flatten


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


def test_an_f_string_cannot_swallow_an_expression() -> None:
    with pytest.raises(ProgramError, match="f-string"):
        f"answer: {sgl.gen('a')}"


def test_a_role_without_text_is_an_empty_turn() -> None:
    assert flatten(sgl.user()) == (RoleBegin("user"), RoleEnd("user"))
    assert flatten(sgl.assistant_begin() + sgl.assistant_end()) == (RoleBegin("assistant"), RoleEnd("assistant"))
