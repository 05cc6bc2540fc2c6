"""Whose text may hold the chat template's markers: a program's own words outside of roles, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from context_support import fake_runtime

import lmnb as sgl
from lmnb.backends.local import Runtime
from lmnb.language.expressions import Expr
from lmnb.runtime.testing import ByteTokenizer

State = sgl.ProgramState
SPECIAL = ByteTokenizer().special_ids
HEAD, TAIL = "<|im_start", "|>"


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with fake_runtime() as runtime:
        yield runtime


def num_markers(s: State) -> int:
    assert s.text().count(HEAD + TAIL) == 1
    return sum(token.id in SPECIAL for token in s.tokens())


def said(text: str) -> Expr:  # what the model is made to generate
    return sgl.gen("x", regex="".join("\\" + c if c in "|<>" else c for c in text), max_tokens=40)


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (said(HEAD), said(TAIL)),
        (said(HEAD), sgl.gen("y", choices=[TAIL])),
        (said(HEAD), TAIL),
        (HEAD, said(TAIL)),
        (said(HEAD + TAIL), "."),
        (sgl.gen("x", n=2, regex=r"<\|im_start", max_tokens=40), TAIL),
    ],
    ids=["two", "then a choice", "then text", "after text", "whole", "samples"],
)
def test_generated_pieces_never_make_a_marker(
    runtime: Runtime, first: Expr | str, second: Expr | str, reasoning: bool
) -> None:
    @sgl.function
    def program(s: State) -> None:
        s += "a "
        branch = s.fork(1)[0]
        for part in (first, second):
            branch += sgl.separate_reasoning(part, "qwen3") if reasoning and isinstance(part, Expr) else part
        s.set_var("branch", branch)

    assert num_markers(program.run(backend=runtime, max_new_tokens=40)["branch"]) == 0


@pytest.mark.parametrize(("first", "second"), [(said(HEAD), said(TAIL)), (said(HEAD), TAIL), (HEAD, said(TAIL))])
def test_joining_branches_makes_no_marker_of_what_they_generated(
    runtime: Runtime, first: Expr | str, second: Expr | str
) -> None:
    @sgl.function
    def program(s: State) -> None:
        s += "a "
        group = s.fork(2)
        group += [first, second]
        group.join("concate_and_append")

    assert num_markers(program.run(backend=runtime)) == 0


@pytest.mark.parametrize(("inside", "count"), [(False, 1), (True, 2)])
def test_a_programs_own_pieces_count_outside_of_roles_only(runtime: Runtime, inside: bool, count: int) -> None:
    @sgl.function
    def program(s: State) -> None:
        both = sgl.select("x", [HEAD]) + sgl.select("y", [TAIL])
        s += sgl.user_begin() + "q" + both + sgl.user_end() if inside else both

    s = program.run(backend=runtime)
    found = sum(token.id in SPECIAL for token in s.tokens())
    assert found == count  # inside, they are those of the turn itself
