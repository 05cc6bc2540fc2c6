"""Stop regexes: found where Python's own `re` finds the first complete match, however the text is cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmnb.errors import ArgumentError, GrammarError
from lmnb.runtime.output_stream import OutputStream
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.stop_regex import StopRegex
from lmnb.runtime.testing import ByteTokenizer

PATTERNS = ["a+b", "(ab|b){2,3}", "[^a]b", "x?ab", "a.c", "(a|aa)b*c", "(?i)BA", r"(a*)*c", "b{0,2}x", "a(b|c)?a"]
TOKENIZER = ByteTokenizer()


def first_match(pattern: str, text: str) -> tuple[int, int] | None:
    """(begin, end) of the match that is complete first, and of those the one that began first."""
    for end in range(1, len(text) + 1):
        for begin in range(end):
            if re.fullmatch(pattern, text[begin:end]):
                return begin, end
    return None


def run(text: str, *, finish: str = "length", **params: object) -> OutputStream:
    sampling = SamplingParams(max_new_tokens=1000, **params)  # type: ignore[arg-type]
    stream = OutputStream(sampling, TOKENIZER, TOKENIZER.eos_ids)
    published = ""
    for byte in text.encode():
        if stream.finished:
            break
        published += stream.push(byte)
    published += stream.finish(finish)  # type: ignore[arg-type]
    assert published == stream.text
    return stream


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PATTERNS), st.text("abcx\n", max_size=9), st.integers(1, 4))
@example("a+b", "aaab", 2)
def test_against_re(pattern: str, text: str, step: int) -> None:
    regex = StopRegex(pattern)
    found = None
    for at in range(0, len(text), step):
        match = regex.feed(text[at : at + step])
        if match is not None:
            found = (at + match[0] - match[1], at + match[0])
            break
    assert found == first_match(pattern, text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PATTERNS), st.text("abcx", max_size=9))
def test_nothing_is_shown_that_a_match_takes_back(pattern: str, text: str) -> None:
    stream = run(text, stop_regex=(pattern,))
    found = first_match(pattern, text)
    assert stream.text == (text if found is None else text[: found[0]])
    assert (stream.finish_reason, stream.matched) == (("length", None) if found is None else ("stop", pattern))


def test_word_boundaries_and_ends() -> None:
    word = r"\bstop\b"
    assert run("nonstop stops stop. more", stop_regex=(word,)).text == "nonstop stops "
    assert run("please stop", stop_regex=(word,)).text == "please "
    assert run("1. a\n2. b\n3. c", stop_regex=(r"(?m)^3\.",)).text == "1. a\n2. b\n"
    assert run("say yes", stop_regex=(r"yes$",)).text == "say "
    assert run("yes, no", stop_regex=(r"yes$",)).text == "yes, no"


def test_strings_and_regexes_together() -> None:
    both = {"stop": ("END",), "stop_regex": (r"\d+",)}
    assert run("a END 12", **both).matched == "END"
    stream = run("a 12 END", **both)
    assert (stream.text, stream.matched) == ("a ", r"\d+")
    # Complete at one character: the one that began first.
    assert run("xa1", stop=("xa1",), stop_regex=("a1",)).text == ""


@pytest.mark.parametrize("pattern", ["(", "a*", "(?=a)b", r"(a)\1", "(a{500}){500}"])
def test_what_cannot_be_followed_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        SamplingParams(stop_regex=(pattern,))


def test_it_must_be_text() -> None:
    with pytest.raises(ArgumentError):
        SamplingParams(stop_regex=("",))


@pytest.mark.parametrize("pattern", ["x(?:){1000000000}", "(?:){1000000000}x", "(?:(?:){4000000000}x){2}"])
@pytest.mark.timeout(60)
def test_nothing_repeated_often_is_nothing(pattern: str) -> None:
    stream = run("aaxxb", stop_regex=(pattern,))
    assert (stream.text, stream.finish_reason, stream.matched) == ("aa", "stop", pattern)


@pytest.mark.parametrize("pattern", ["", "a*", "^$", "(a|)", "(?:){1000000000}", "$", "(^|a)b?"])
def test_what_matches_the_empty_text_is_refused(pattern: str) -> None:
    with pytest.raises((ArgumentError, GrammarError)):
        SamplingParams(stop_regex=(pattern,))
