"""Python regexes as constraints accept exactly what `re.fullmatch` accepts; what cannot be followed is refused."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmnb.errors import ArgumentError, GrammarError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_regex import to_rust_regex
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

GRAMMARS = Grammars(ByteTokenizer(), 259)
EOS = 258

PATTERNS = [
    r"\d{4}-\d\d-\d\d",
    r"(\w+\s?)+\.",
    r"[^\n]{1,20}",
    r".*",
    r"(?s).*",
    r"a.b",
    r"^yes$|^no$",
    r"(^a|b)$",
    r"\Aab\Z",
    r"(?i)straße|K",
    r"(?i)[^k-m]",
    r"(?i:a)b",
    r"(?x) a b  # comment",
    r"[a&&b]+",
    r"[[a~~b&&c]+",
    r"[]^-]+",
    r"a{2",
    r"{x}",
    r"a{,2}",
    r"a+?b*?c??",
    r"\s\S\w\W\d\D",
    r"(?a)\w+",
    r"[\w.]+@[\w.]+",
    r"[\s\S]{0,9}",
    r"(?P<year>\d+)(?:/)",
    r"[+-]?(\d+\.?\d*|\.\d+)",
    r"😀|你好|é+",
    r"[😀-😅]",
    r"\x41\u00e9\101",
    r"/\"\\",
    r"",
    r"()|a",
    r"a|[^\s\S]",
    r"[-+]?[0-9]+[ \n]*",
    r"(True|False)",
    r'"[\w\d\s]*"',
]
SAMPLES = [
    *'abkKſmé😀你\n\t \x1c\x85\u2028\u0301²½߂٣_-+./"\\{}[]&~^$@,:\u212a',
    "ab",
    "yes",
    "no",
    "STRASSE",
    "a{2",
    "1.5",
]


def accepts(pattern: str, text: str) -> bool:
    matcher = GRAMMARS.compile(Constraint("regex", pattern))
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(EOS)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_same_language_as_python(pattern: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        st.one_of(
            st.from_regex(re.compile(pattern), fullmatch=True),
            st.lists(st.sampled_from(SAMPLES), max_size=5).map("".join),
        )
    )
    def check(text: str) -> None:
        if not any("\ud800" <= char <= "\udfff" for char in text):
            assert accepts(pattern, text) == (re.fullmatch(pattern, text) is not None)

    check()


atoms = st.sampled_from(["a", "b", ".", r"\d", r"\w", r"\s", "[ab]", "[^a]", r"[^\W\d]", "é", r"\."])


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "{2}", "*?"])).map(lambda t: f"(?:{t[0]}){t[1]}"),
            inner.map(lambda body: f"(?i:{body})"),
        ),
        max_leaves=6,
    ),
    st.lists(st.text("abAé1. \n²", max_size=5), max_size=8),
)
@example("(?i:[^a])", ["A", "a", "b"])
def test_random_patterns(pattern: str, texts: list[str]) -> None:
    for text in texts:
        assert accepts(pattern, text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(?=b)", r"look-around.*position 1"),
        ("a(?!b)c", r"look-around.*position 1"),
        ("(?<=a)b", r"look-around.*position 0"),
        ("x(?<!a)b", r"look-around.*position 1"),
        (r"(a)\1", r"back-references.*position 3"),
        (r"(?P<n>a)-(?P=n)", r"back-references.*position 9"),
        (r"(a)?(?(1)b|c)", r"back-references.*position 4"),
        ("a^b", r"\^.*beginning.*position 1"),
        ("(?:a^)?b", r"\^.*beginning.*position 4"),
        ("a$b", r"\$.*end.*position 1"),
        (r"ab\Ac", r"beginning.*position 2"),
        (r"\bword\b", r"word boundaries.*position 0"),
        (r"[\b$^]a\Bb", r"word boundaries.*position 7"),
        ("(^a)*", r"\^.*beginning"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_place(pattern: str, message: str) -> None:
    re.compile(pattern)  # Python reads it; a mask cannot follow it
    with pytest.raises(GrammarError, match=message):
        GRAMMARS.compile(Constraint("regex", pattern))


@pytest.mark.parametrize("pattern", ["a++b", "(?>a|ab)c"])
def test_groups_that_do_not_backtrack_are_refused(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error:
        match = "invalid"  # Python 3.10 does not know them
    else:
        match = "possessive and atomic"
    with pytest.raises(GrammarError, match=match):
        GRAMMARS.compile(Constraint("regex", pattern))


@pytest.mark.parametrize("pattern", ["(", "[a", "a{3,2}", "*a", r"\q", "(?P<n", "a{99999999999999}", "(?<n>a)"])
def test_invalid_patterns_are_one_line(pattern: str) -> None:
    with pytest.raises(GrammarError) as error:
        GRAMMARS.compile(Constraint("regex", pattern))
    assert "\n" not in str(error.value)
    assert repr(pattern) in str(error.value)


@pytest.mark.parametrize("pattern", [r"[^\s\S]", "a[^\\s\\S]|[^\\d\\D]"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="matches nothing"):
        GRAMMARS.compile(Constraint("regex", pattern))


def test_half_a_character_is_refused_where_the_constraint_is_made() -> None:
    with pytest.raises(ArgumentError, match="half a surrogate pair"):
        Constraint("regex", "\ud800")


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(GrammarError):
        GRAMMARS.compile(Constraint("regex", "(" * 5000 + ")" * 5000))


def test_classes_are_spelled_out() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert to_rust_regex("a.b") == r"a[\x{0}-\x{9}\x{B}-\x{D7FF}\x{E000}-\x{10FFFF}]b"
        assert to_rust_regex("[b-d/]") == r"[\x{2F}b-d]"


def test_unicode_classes_are_refused_with_another_way() -> None:
    with pytest.raises(GrammarError, match=r"bad escape .p at position 1; Python has no Unicode classes, but"):
        to_rust_regex(r"a\p{L}+")
    assert re.fullmatch(r"[^\W\d_]+", "Straßé")


@pytest.mark.parametrize(
    ("choices", "others"),
    [
        (["a", "a"], ["aa"]),
        (["a", "ab", "abc"], ["abcd", ""]),
        (["", "a"], ["b"]),
        (["a|b", "(", "\\", "\n", "😀", '"', "^$", "a b"], ["a", "b", "", " "]),
        ([f"option {i}" for i in range(10_000)], ["option 10000", "option ", "option 00"]),
        (["x" * 1000 + str(i) for i in range(100)], ["x" * 1000, "x"]),
        (["|" * i for i in range(300)], ["|" * 300, "a"]),
    ],
    ids=lambda texts: repr(texts)[:20],
)
def test_choices_are_enforced(choices: list[str], others: list[str]) -> None:
    tokenizer = ByteTokenizer()
    matcher = Grammars(tokenizer, tokenizer.vocab_size).compile(Constraint.of_choices(choices))
    for text in [*choices[:50], *choices[-50:], *others]:
        copy = matcher.fork()
        taken = all(copy.accept(byte) for byte in text.encode()) and copy.accept(min(tokenizer.eos_ids))
        assert taken == (text in choices), text
