"""Grammars in Lark's form and in GBNF's: what each means, and what is said of those that cannot be enforced."""

from __future__ import annotations

import json

import pytest

from lmnb.language.check import check_constraint

SCHEMA = {"type": "object", "properties": {"a": {"type": "number", "maximum": 2.75}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("grammar", "valid", "invalid"),
    [
        ('start: e\ne: e "+" t | t\nt: /[0-9]+/\n', ["1", "1+22"], ["+1", "1+", ""]),
        ('start: e\ne: t "+" e | t\nt: "(" e ")" | "x"\n', ["x", "(x+x)+x"], ["(x", "x)"]),
        ("start:\n", [""], ["a"]),
        ('start: "a" |\n', ["a", ""], ["b"]),
        ('start: s\ns: s s | "a"\n', ["a", "aaa"], ["", "b"]),
        ('// one\nstart: "a" # two\n', ["a"], ["b"]),
        ('start: "a"~3..5\n', ["aaa", "aaaaa"], ["aa", "aaaaaa"]),
        ('start: "a"{2} ["b"] ("c" | "d")*\n', ["aa", "aab", "aacd"], ["a", "aabb"]),
        ("start: /ABC/i\n", ["abc", "AbC"], ["ab"]),
        ('start: "a".."c" "é😀"\n', ["bé😀"], ["dé😀"]),
        ("start: A\nA: /[a-z]+/ & ~/foo/\n", ["fo", "fooo"], ["foo", ""]),
        ("start: a\n" + "".join(f'a{"b" * i}: "x" a{"b" * (i + 1)} | "y"\n' for i in range(50)) + f'a{"b" * 50}: "z"\n',
         ["y", "xxy"], ["x"]),
        ("start: " + " | ".join(f'"w{i}"' for i in range(1000)) + "\n", ["w0", "w999"], ["w1000", "w"]),
        ("start: A\nA: " + " | ".join(f'"w{i}"' for i in range(10_000)) + "\n", ["w0", "w9999"], ["w10000", "w"]),
        ('root ::= "(" root ")" | ""\n', ["", "(())"], ["(", ")("]),
        ('# hi\nroot ::= item{2,3} # there\nitem ::= [^\\n]\n', ["ab", "abc"], ["a", "a\n"]),
        # Which form it is in is seen by its rules.
        ('start: "a ::= b"\n', ["a ::= b"], ["a", "b"]),
        ('# a ::= b\nstart: A // ::=\nA: /::=|c ::= /\n  | "d"\n', ["::=", "c ::= ", "d"], ["a"]),
        ('start: %json {\n"const": "x ::= y"}\n', ['"x ::= y"'], ["x"]),
        ('# start: "b"\n\n  root::= "a: b"\n', ["a: b"], ["b"]),
        # GBNF is read character by character.
        ('root ::= ("x" | "xy") "yz"\n', ["xyz", "xyyz"], ["xy", "yz"]),
        ('root ::= [a-z]+ "b" | "(" root ")"\n', ["ab", "abb", "((zzb))"], ["b", "()", "(b)"]),
        ('root ::= item ("," item)*\nitem ::= "a" | "a,b" | [a-z]\n', ["a,b", "a,b,c,a,b", "x,a"], ["a,", ",a"]),
        ('root ::= x "b"\nx ::= "(" x ")" | "a" [a-z]+\n', ["abb", "azb", "(ab)b"], ["ab", "aba", "(ab)"]),
        ('root ::= x "b" | "ab" "c"\nx ::= "(" x ")" | "a"\n', ["ab", "abc", "(a)b"], ["a", "(a)bc"]),
        ('root ::= x "b"\nx ::= "a" x "c" | "ab"? "a"\n', ["ab", "abab", "aacb"], ["abb", "aab"]),
        ('root ::= ([ab]{1,3}){2} root?\n', ["ab", "abb", "aaaaaaa"], ["a", ""]),
        # What would never end is not begun.
        ('root ::= "a" (b "c")* | b\nb ::= "b" b\n', ["a"], ["ab", "b"]),
        ('root ::= Foo foo\nFoo ::= "A"\nfoo ::= "a"\n', ["Aa"], ["aa", "AA"]),
        ('root ::= "\\u00e9\\n\\x41" [\\u00e9-\\u00ff&&~-] .\n', ["é\nAé\n", "é\nA&x", "é\nA-x"], ["é\nAAx", "é\nAé"]),
        # Schemas inside mean what they mean elsewhere: compact, closed, decimals exact.
        (f'start: "x" %json {json.dumps(SCHEMA)} "y"\n', ['x{"a":2.7}y'], ['x{"a": 2.7}y', 'x{"a":2.8}y', 'x{"b":2}y']),
        ('start: a "<[1]>"\na: %json {"not":{"type":["string","object","array"]}}\n', ["1<[1]>"], ['"a"<[1]>', "1"]),
        ('start: "%json {" /<\\[1\\]/ // <[1]>\n', ["%json {<[1]"], ["%json {"]),
        ('start: %regex {"substring_chars":"<[1]> %json"}\n', ["<[1", "", "json"], ["x"]),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)  # fmt: skip
def test_grammars_are_enforced(grammar: str, valid: list[str], invalid: list[str]) -> None:
    report = check_constraint(ebnf=grammar, samples=[*valid, *invalid])
    assert report.error is None, report.error
    assert report.accepted == [True] * len(valid) + [False] * len(invalid), report


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "no start rule"),
        ("start: foo\n", 'unknown name: "foo" (line 1, column 8)'),
        ('start: "a"\n\nstart: "b"\n', 'duplicate rule: "start" (line 3'),
        ("start: start\n", "'start' matches no text that ever ends; let recursion end"),
        ("start: a\na: b\nb: a\n", "'start' matches no text that ever ends"),
        ("start: A\nA: /a/ & /b/\n", "matches nothing"),
        ("start: \"a\"\n  | 'b'\n", "cannot be read at \"'b'\\n\" (line 2); texts stand in double quotes"),
        ('start: x\nx[suffix="]", stop="b"]: /a/\n', "stop= (line 2) has no effect"),
        ('start: A\nA: "x" A | "y"\n', "circular reference"),
        ('start: "a"{100000}\n', "too much text"),
        ("start: " + " | ".join(f'"w{i}"' for i in range(10_000)) + "\n", "too large to follow"),
        ('start: "a"{99999999999}\n', "too large"),
        ("start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(25)) + 'r25: "z"\n', "too large"),
        ("start: /(/\n", "unclosed group (line 1"),
        ("start: /a(?=b)/\n", "look-around"),
        ("start: " + "(" * 2000 + '"a"' + ")" * 2000 + "\n", "too deeply nested"),
        ('start: "a\n', "line 1"),
        ('start: "a"\nb: <[1-3]>\n', "<[1-3]> (line 2) names tokens"),
        ("start: <|im_end|>\n", "<|im_end|> (line 1) names tokens"),
        ('start: "a"\n// b\nb[temperature=0.3]: /a/\n', "temperature= (line 3) has no effect"),
        ('start[stop="x"]: /.*/\n', "stop= (line 1) has no effect"),
        ('start: "a" b\n?b [ temperature = 1 ] : /a/\n', "temperature= (line 2) has no effect"),
        ('%llguidance {"no_forcing":false}\nstart: "a"\n', "leave that line out"),
        ('start: "a" %json {"type":\n', "JSON (line 1) cannot be read"),
        ('start: %json {"type":"foo"}\n', "'type' at #"),
        ('start: %json {"type":"array","uniqueItems":true}\n', "'uniqueItems' at #"),
        ('start: %json {"x-guidance":{"lenient":true},"contains":{"const":1}}\n', "'contains' at #"),
        ("root ::= x\n", "'x' not found"),
        ('root ::= x\nx ::= "a" x\n', "'root' matches no text that ever ends; let recursion end"),
        ('x ::= "a"\n', "No 'root' rule"),
        ("root ::= (\n", "GBNF"),
        ('root ::= "a"\nroot ::= "b"\n', "'root' is there twice"),
        ('root ::= x\nx ::= "a"\n# x\nx ::= "a"\n', "'x' is there twice"),
        ('<root> ::= "a"\n', "GBNF"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_grammar_says_why_and_where(grammar: str, message: str) -> None:
    report = check_constraint(ebnf=grammar)
    assert report.error is not None
    assert message in report.error
    assert "\n" not in report.error
    assert len(report.error) < 400
