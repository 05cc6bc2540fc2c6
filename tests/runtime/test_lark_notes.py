"""What `check_constraint` notes of grammars in Lark's form: greed, and rules that never end, by name and line."""

from __future__ import annotations

import pytest

from lmnb import check_constraint


@pytest.mark.parametrize(
    ("grammar", "places"),
    [
        ('start: /[a-z]+/ "b"\n', "/[a-z]+/ (line 1)"),
        ('start: "if" NAME | NAME "=" NAME\n// names\nNAME: /[a-z]+/\n', "NAME (line 3)"),
        ("start: A B\nA: /[a-z]+/\nB: /[a-z0-9]+/\n", "A (line 2)"),
        ('start: x "b" | "ab" "c"\nx: "a"\n', '"ab" (line 1)'),
        ('start: A "b"\n\nA: "a" B?\nB: /\\x{62}c/\n', "A (line 3)"),
        ('start: /(?s:.)*/ "end"\n', "/(?s:.)*/ (line 1)"),
        ('start: "Ab"i "c" | "ABCD"i "e"\n', '"ABCD"i (line 1)'),
        ('start: (/x+/ "," | /[xy]+/ "x" | "z" | /z+/ "z")*\n', "/[xy]+/ (line 1), /x+/ (line 1), /z+/ (line 1)"),
        # What cannot be read counts as any text.
        ('start: /\\p{L}+/ "b"\n', "/\\p{L}+/ (line 1)"),
        ('start: A "b"\nA: /[a-z]+/ & ~/foo/\n', "A (line 2)"),
        ('start: /[a-z]+/ %json {"type": "null"}\n', "/[a-z]+/ (line 1)"),
    ],
)
def test_greedy_terminals_are_noted(grammar: str, places: str) -> None:
    report = check_constraint(ebnf=grammar)
    assert report.error is None
    (note,) = report.notes
    assert f"so that {places} may take what the next part should begin with; make one terminal" in note


@pytest.mark.parametrize(
    "grammar",
    [
        'start: e\ne: e "+" t | t\nt: /[0-9]+/\n',
        "start: A B\nA: /[a-z]+/\nB: /[0-9]+/\n",
        'start: WORD (" " WORD)* "."\nWORD: /[A-Za-z]+/\n',
        'start: line+\nline: /[^\\n]*/ "\\n"\n',
        "start: A\nA: /[a-z]+/ & ~/foo/\n",
        'start: "n: " %json {"type": "integer"} /[a-z]/\n',
        '?start: "a"~3..5 ("c" | "d"){2} -> foo\n  | "a".."c" "é"i // ::\n%ignore /\\s+/\n',
        "start:\n",
        "start: A\nA: " + " | ".join(f'"w{i}"' for i in range(3000)) + "\n",
        'root ::= x "b"\nx ::= "(" x ")" | [a-z]+\n',
    ],
)
def test_other_grammars_have_no_notes(grammar: str) -> None:
    report = check_constraint(ebnf=grammar)
    assert report.error is None
    assert report.notes == ()


def test_rules_that_never_end_are_noted() -> None:
    (note,) = check_constraint(ebnf='start: "a" x | "b"\nx: "b" y\ny: "c" x\n').notes
    assert note.startswith("what x (line 2), y (line 3) matches never ends, and yet may be begun; let recursion end")


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "ok"\nx: "a" x\n',
        'start: "k" x~0\nx: "a" x\n',
        'start: "k" (y x){0} y{,0}\ny: "b"\nx: "a" x\n',
        'start: "ok" | "b" z\nz: "c"\nx: "a" y\ny: z x\n',
    ],
)
def test_rules_that_cannot_be_begun_are_not_noted(grammar: str) -> None:
    assert check_constraint(ebnf=grammar).notes == ()


def test_rules_that_never_end_are_noted_beside_imported_terminals() -> None:
    (note,) = check_constraint(ebnf='%import common.INT\nstart: "a" x | INT\nx: INT x\n').notes
    assert note.startswith("what x (line 3) matches never ends")
