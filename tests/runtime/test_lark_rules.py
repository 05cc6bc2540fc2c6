"""A grammar in Lark's form that only texts without an end match is refused, and no other: what is refused is compared
with what random grammars derive, and with what the library takes."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
from text_walks import GRAMMARS, TOKENIZER

from lmnb import check_constraint
from lmnb.runtime.grammar_reading import Reading
from lmnb.runtime.grammar_vocab import GrammarVocabulary
from lmnb.runtime.lark_rules import emptiness
from lmnb.runtime.llguidance_grammar import LLGuidanceCompiler
from lmnb.runtime.request import Constraint

NAMES = ["start", "x", "y_z"]
REFUSED = (
    "the grammar's rule 'start' matches no text that ever ends; let recursion end, by something optional or another"
)
LEAVES = [
    '"a"',
    '"(x"i',
    "/b|c/",
    "/[|]y_z/",
    r"/a\//",
    '"a".."c"',
    "A",
    "B_C",
    "INT",
    '""',
    '%json {"const": "|"}',
    "/a\n|b/",
]
FAR = 10**9

Rules = dict[str, float]  # by name, the fewest terminals of a text that matches; FAR if there is none


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start\n',
        "start: start\n",
        "start: x y\nx: \"a\"\ny: x y | y\n",
        'start: x+ // | "a"\nx: "a" [x] x~1..2\n',
        '?start: x "b" | "a" x{2,}\n\n# x: "a"\n!x: "a" x -> x\n  | x x "c"\n',
        'start[capture]: x\nx: ("a" | "b") (x | y)\ny: /a|b/ x\n%ignore " " | "x"\n%import common.INT\n',
        'start: x /[|]/\nx: x "|" A\nA: "a"\n  | "b"\n',
    ],
)  # fmt: skip
def test_what_never_ends_is_refused_by_name(grammar: str) -> None:
    error = check_constraint(ebnf=grammar, samples=["a"]).error
    assert error is not None
    assert error.startswith(REFUSED)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start |\n',
        'start: "a" start\n\n  | "b"\n',
        'start: "a" start~0..2\n',
        'start: "a" start{,3}\n',
        'start: "a" [start]\n',
        "start: x INT?\nx: INT\n%import common.INT -> INT\n",
        "start: num\n%import common.INT -> num\n",
        'start: start /a # [/x | /b]/\n',
        'start: x\nx: /a\nx: b/ // x\n',
        'start: x "."\nx[max_tokens=3]: %lark {\n  start: "a" start\n}\n',
        'start: x::0\nx::_: "a" x::incr(_) %if lt(_, 3) | "b" %if eq(_, 3)\n',
        'start: "a" x | "b"\nx: "b" x\n',
    ],
)  # fmt: skip
def test_what_ends_or_is_not_known_is_not_refused(grammar: str) -> None:
    error = check_constraint(ebnf=grammar).error
    assert error is None or REFUSED not in error


def part(rng: random.Random, depth: int, rules: Rules) -> tuple[str, float]:
    """In Lark's form, and how few terminals match it, by what is known of the rules it refers to."""
    if depth == 0 or rng.random() < 0.4:
        if rng.random() < 0.5:
            name = rng.choice(NAMES)
            return name, rules[name]
        return rng.choice(LEAVES), 1
    texts, sizes = zip(*(part(rng, depth - 1, rules) for _ in range(rng.randrange(1, 4))), strict=True)
    row, size = rng.choice([" ", "  ", " \t"]).join(texts), min(FAR, sum(sizes))
    if rng.random() < 0.3:
        other, less = part(rng, depth - 1, rules)
        row, size = f"{row} | {other}", min(size, less)
    sign, low = rng.choice(
        [("", 1), ("", 1), ("?", 0), ("*", 0), ("+", 1), ("~2", 2), ("{0,3}", 0), ("{,2}", 0), ("{1,}", 1)]
    )
    if rng.random() < 0.1:
        return f"[{row}]", 0
    return f"({row}){sign}", min(FAR, low * size)


def random_grammar(seed: int, rules: Rules) -> tuple[str, Rules]:
    """The same for a seed, whatever the rules are said to need; and what they do then."""
    rng = random.Random(seed)
    lines, found = [], {}
    for name in NAMES:
        alternatives = [part(rng, 2, rules) for _ in range(rng.choice([1, 1, 2]))]
        between = rng.choice([" | ", "\n  | ", " -> alias | ", " // | x\n | ", " # y_z: \n\n\t| "])
        head = rng.choice(["", "?", "!"]) + name + rng.choice(["", "[capture]", ' [capture="]: x |"] '])
        lines.append(f"{head}: {between.join(text for text, _ in alternatives)}")
        found[name] = min(size for _, size in alternatives)
    lines += ['A: "a" | "b"', 'B_C: A\n  | /c/ "d"?', "%import common.INT", '%ignore " "\n| /x/']
    rng.shuffle(lines)
    return "\n".join(lines) + "\n", found


@pytest.mark.parametrize("seed", range(6))
def test_random_grammars_are_refused_if_and_only_if_nothing_ends(seed: int) -> None:
    refused = 0
    for number in range(100):
        rules: Rules = dict.fromkeys(NAMES, FAR)
        while True:
            source, found = random_grammar(1000 * seed + number, rules)
            if found == rules:
                break
            rules = found
        error = check_constraint(ebnf=source).error
        if rules["start"] >= FAR:
            assert error is not None, source
            assert error.startswith(REFUSED), (source, error)
            refused += 1
        else:
            assert error is None or "too" in error, (source, error)
    assert 5 < refused < 90


def some_text(compiler: LLGuidanceCompiler, source: str, most: int) -> bytes | None:
    """A short text that the library takes, breadth first; None if it takes none among as many beginnings."""
    matcher = compiler.compile(Constraint("ebnf", source), Reading('%llguidance {"no_forcing": true}\n' + source))
    mask = np.zeros(-(-TOKENIZER.vocab_size // 32), dtype=np.int32)
    waiting = deque([(b"", matcher)])
    while waiting and most > 0:
        text, matcher = waiting.popleft()
        if not matcher.fill(mask):
            continue
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        if matcher.fork().accept(min(TOKENIZER.eos_ids)):
            return text
        for token_id in sorted(allowed, key=lambda token_id: token_id not in b"abcd")[:6]:
            copy = matcher.fork()
            if copy.accept(token_id):
                waiting.append((text + bytes((token_id,)), copy))
            most -= 1
    return None


@pytest.mark.parametrize(
    "grammar",
    [
        'start: A\nA: "a" & "b"\n',
        'start: "c" A\nA: "a" & "b"\n',
        'start: "c" A\nA: "a" & ~"a"\n',
        'start: "c" A\nB: "a" & "b"\n\n  | "b" & "c"\nA: "x" C\nC: B\n',
        'start: "c" x+\nx: "d" A\nA: B & "ab"\nB: "a"\n',
        'start: "c" A | x\nx: x "a" | "b" /[^\\s\\S]/i\nA: INT & "a"\n%import common.INT\n',
        'start: "c" /a[^\\s\\S]/\n',
        'start: "c" /a[^\\x{0}-\\x{10FFFF}]/ "d"\n',
        'start: "c" /a[a-z&&0-9]/\n',
        'start: "c" x\nx[max_tokens=2]: "q" A\nA: "a" & "b"\n',
    ],
)  # fmt: skip
def test_what_needs_a_terminal_that_matches_nothing_is_refused(grammar: str) -> None:
    error = check_constraint(ebnf=grammar, samples=["c"]).error
    assert error is not None
    assert error.startswith("the grammar ")
    assert error.endswith(" matches nothing")


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: "c" A?\nA: "a" & "b"\n', "c"),
        ('start: "c" (A | B)\nA: "a" & "b"\nB: /[a-c]/ & ~"b"\n', "ca"),
        ('start: "c" A\nA: B | "x"\nB: "a" & "b"\n', "cx"),
        ('start: "c" A\nA: "a"? & "b"?\n', "c"),
        ('start: "c" /([^\\s\\S])*d/\n', "cd"),
        ('start: "c" /[^\\S]/\n%ignore A\nA: "a" & "b"\n', "c "),
        ('start: "c" x "."\nx[max_tokens=0]: A\nA: "a" & "b"\n', "c."),
        ('start: "c" x "."\nx[capture="]", max_tokens=+00]: "a" x\n', "c."),
        ('start: "c" A~0 "."\nA: "a" & "b"\n', "c."),
    ],
)
def test_what_does_not_need_one_is_not_refused(grammar: str, text: str) -> None:
    assert check_constraint(ebnf=grammar, samples=[text]).accepted == [True]


def terminal(rng: random.Random, depth: int, names: str) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(['"a"', '"b"', '"ab"', "/[ab]/", "/a*/", "/[^\\s\\S]/", "/b[a&&b]|a/", *names])
    parts = [terminal(rng, depth - 1, names) for _ in range(rng.choice([1, 2, 2]))]
    return (
        f"{rng.choice(['', '', '~'])}({rng.choice([' ', ' | ', ' & ', ' & ']).join(parts)}){rng.choice(['', '', '?'])}"
    )


def test_random_terminals_are_impossible_if_and_only_if_the_library_takes_no_text_of_them() -> None:
    """Of several in a row it may take none even so, as the first one may take what the next one needs."""
    rng = random.Random(5)
    compiler = LLGuidanceCompiler(GrammarVocabulary(TOKENIZER, TOKENIZER.vocab_size))
    refused = accepted = 0
    for _ in range(300):
        start = rng.choice(['start: "c" C', 'start: "c" x\nx: B "d" | C', 'start: x\nx: "c" (A B)+'])
        lines = [f"{name}: {terminal(rng, 2, 'ABC'[:at])}" for at, name in enumerate("ABC")]
        rng.shuffle(lines)
        source = "\n".join([start, *lines])
        if compiler._why_not(source) is not None:
            continue
        is_empty = some_text(compiler, source, 400) is None
        if emptiness(source):
            assert is_empty, source
            refused += 1
        else:
            assert not is_empty or start != 'start: "c" C', source
            accepted += 1
    assert refused > 30
    assert accepted > 30


def test_nothing_is_refused_that_the_library_takes_a_text_of() -> None:
    """Of grammars that are written in any way: pieces of others, of which the library reads some."""
    rng = random.Random(3)
    compiler = LLGuidanceCompiler(GrammarVocabulary(TOKENIZER, TOKENIZER.vocab_size))
    pieces = [
        *("start", "x", "y", "A", "/", "/a/", "/[/", "]/", '"a"', '"', "|", "|", "\n", "\n", "\n|", "x: ", "\ny: "),
        *("(", ")", "[", "]", "?", "*", "+", "~", "2", "{", "}", ",", "//", "#", " ", " ", "->", ":", "i", "&", "_"),
        *("\\", "\r\n", "..", "-"),
    ]  # fmt: skip
    read = refused = 0
    for _ in range(6000):
        body = [rng.choice(pieces) + rng.choice(["", " "]) for _ in range(rng.randrange(2, 9))]
        source = f"start: {''.join(body)}\nx: {rng.choice(['x', 'y', 'start x', 'A', 'y | y y'])}\ny: x start\nA: /b/\n"
        if GRAMMARS._get_llguidance()._why_not(source) is not None:  # it does not compile
            continue
        read += 1
        if emptiness(source):
            refused += 1
            assert some_text(compiler, source, 60) is None, source
    assert read > 200
    assert refused > 30
