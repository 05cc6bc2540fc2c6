"""Constraints made to be expensive: what compiling them costs is bounded, in the engine's process, by what is accepted.

Costs are counted (characters written out, sizes, threads), never timed: a test of time would fail on a busy machine.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmnb.errors import GrammarError
from lmnb.runtime import grammar_regex
from lmnb.runtime.compile_pool import LOW_PRIORITY, give_way
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_regex import characters, complement, parser, to_rust_regex, union
from lmnb.runtime.grammar_schema import plan_schema
from lmnb.runtime.json_patterns import pattern_to_rust
from lmnb.runtime.request import Constraint, SamplingParams
from lmnb.runtime.testing import ByteTokenizer


def bounded_integers(count: int) -> dict[str, Any]:
    bounds = {"type": "integer", "minimum": 7, "maximum": 10**9 + 13}
    return {"type": "object", "properties": {f"p{i}": bounds for i in range(count)}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"\w" * 5000, "too large once"),
        (r"(?i)" + r"\W" * 5000, "too large once"),
        (r"\W{3}" * 2000, "too large once"),
        ("a" * 20_001, "20001 characters"),
        ("[" * 20_000, "invalid"),
        (r"\[" * 9_000 + "[[:alpha:]]", "POSIX"),
        ("$" * 10_000 + "a", "position 0"),
        ("(" * 9_000 + ")" * 9_000, "too large|invalid"),
        ("a{" + "9" * 5000 + "}", "counts too far|too large"),
        ("a{2," + "9" * 5000 + "}", "counts too far|too large"),
    ],
)
def test_regexes_that_grow_are_refused(pattern: str, message: str) -> None:
    """Reading them takes time in proportion to their length at most: none of these is noticed."""
    for read in (to_rust_regex, pattern_to_rust) if len(pattern) > 20_000 else (to_rust_regex,):
        with pytest.raises(GrammarError, match=message) as caught:
            read(pattern)
        assert len(str(caught.value)) < 300


def test_counts_of_thousands_of_digits_are_refused_everywhere() -> None:
    many = "9" * 5000
    with pytest.raises(GrammarError, match=r"stop_regex=.* is too large"):
        SamplingParams(stop_regex=(f"a{{{many}}}",))
    for grammar in (f'start: "a"~{many}', f'start: "a"~1..{many}', f'root ::= "a"{{{many}}}'):
        with pytest.raises(GrammarError) as caught:
            Grammars(ByteTokenizer(), 259).compile(Constraint("ebnf", grammar))
        assert len(str(caught.value)) < 600


def test_repeats_are_not_written_out() -> None:
    assert len(to_rust_regex(r"(\w{1,5000} ){0,5000}")) < 20_000


@pytest.mark.parametrize(
    "schema",
    [
        bounded_integers(400),
        {"type": "object", "properties": {"k" * 2000 + str(i): {"type": "null"} for i in range(20)}},
        {"enum": ["é" * 500 + str(i) for i in range(20)]},
        {"anyOf": [{"const": "x" * 200 + str(i)} for i in range(20)]},
    ],
)
def test_xgrammar_gets_what_it_compiles_at_once(schema: dict[str, Any]) -> None:
    """Its time and memory grow with more than the square of a schema's size, and nothing can stop it."""
    assert plan_schema(json.dumps(schema)).engine == "llguidance"
    with pytest.raises(GrammarError, match=r"take too long to compile.*leave grammar_backend out"):
        plan_schema(json.dumps(schema), engine="xgrammar")


def test_by_name_xgrammar_gets_somewhat_more() -> None:
    schema = json.dumps(bounded_integers(50))
    assert plan_schema(schema).engine == "llguidance"
    assert plan_schema(schema, engine="xgrammar").engine == "xgrammar"


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
def test_libraries_run_with_a_low_priority_and_python_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that holds the interpreter's lock while others have the processor would stop everything."""

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    seen: dict[str, int] = {}
    tokenizer = ByteTokenizer()
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    compiler = grammars._get_llguidance()
    library = compiler._library

    class Recording:
        @staticmethod
        def LLMatcher(*arguments: Any, **options: Any) -> Any:  # noqa: N802
            seen["library"] = priority()
            return library.LLMatcher(*arguments, **options)

    def read(pattern: str) -> str:
        seen["python"] = priority()
        return to_rust_regex(pattern)

    monkeypatch.setattr(compiler, "_library", Recording)
    monkeypatch.setattr("lmnb.runtime.grammar_reading.to_rust_regex", read)
    grammars.compile(Constraint("regex", "ab+"))
    assert seen == {"library": LOW_PRIORITY, "python": priority()}


def test_what_goes_wrong_in_a_library_is_told() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        give_way(fail)
    assert give_way(lambda: 3) == 3


EVERY = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
REST = EVERY[EVERY.index(chr(grammar_regex._LAST_CASED)) :]
TRICKY = "aksKſIiİıßẞµμ\u0345ι\u1fbeéÉ1_ǅǆςfﬁﬅﬆ"


def test_no_character_beyond_the_known_ones_has_two_cases() -> None:
    assert REST.lower() == REST.upper() == REST


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["(?i)", "(?ia)"]),
    st.one_of(
        st.sampled_from(["k", "[a-z]", "[^a-z]", r"[k-m\d]", r"\W", "[À-ɏ]", "[ɐ-ᾼ]", r"[\s\D]", r"[^\w-]"]),
        st.builds(
            lambda no, chars: f"[{no}{''.join(chars)}]",
            st.sampled_from(["", "^"]),
            st.lists(st.sampled_from(TRICKY), min_size=1, max_size=4),
        ),
    ),
)
def test_classes_without_case_are_those_of_python(flags: str, source: str) -> None:
    tree = parser.parse(flags + source)
    ((op, argument),) = list(tree)
    expected = [(ord(char), ord(char)) for char in re.findall(flags + source, EVERY[: EVERY.index(REST[0])])]
    beyond = (ord(REST[0]), ord(REST[-1]))
    found = [*characters(op, argument, tree.state.flags), beyond]
    assert complement(union(found)) == complement(union([*expected, beyond]))
