"""Whatever is given as a constraint, it is refused on one line or enforced: never a crash, a hang or a silent loss."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmnb.errors import GrammarError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, cache_size=4)
CLOSERS = b'"}],:0123456789truefalsn{[ea-zA-Z '

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-20, 20), st.sampled_from([0.5, -1.25, 1e3]), st.text('ab1é"\\', max_size=3)
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text("ab", max_size=2), v, max_size=2), max_leaves=3
)
COUNTS = st.integers(0, 3)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
NAMES = st.sampled_from(["a", "b", "ab", "é", 'q"'])
PATTERNS = st.sampled_from(
    ["^a+$", "b", "^[0-9]{2}", r"\d$", "^(a|bc)*$", r"^\w\s$", "^.{1,2}$", "(?=a)", "[[:alpha:]]", "("]
)


def schemas() -> st.SearchStrategy[Any]:
    """JSON schemas with anything in them."""

    def node(child: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries(
            {},
            optional={
                "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
                "enum": st.lists(VALUES, max_size=3),
                "const": VALUES,
                "properties": st.dictionaries(NAMES, child, max_size=2),
                "required": st.lists(NAMES, max_size=2, unique=True),
                "additionalProperties": child | st.booleans(),
                "patternProperties": st.dictionaries(PATTERNS, child, max_size=1),
                "items": child | st.booleans(),
                "prefixItems": st.lists(child, min_size=1, max_size=2),
                "minItems": COUNTS,
                "maxItems": COUNTS,
                "minLength": COUNTS,
                "maxLength": COUNTS,
                "minProperties": COUNTS,
                "maxProperties": COUNTS,
                "minimum": st.integers(-5, 5) | st.sampled_from([0.5, -2.25]),
                "exclusiveMaximum": st.integers(-5, 50),
                "multipleOf": st.sampled_from([1, 3, 0.5]),
                "pattern": PATTERNS,
                "format": st.sampled_from(["date", "ipv4", "uuid", "phone"]),
                "anyOf": st.lists(child, min_size=1, max_size=2),
                "oneOf": st.lists(child, min_size=1, max_size=2),
                "allOf": st.lists(child, min_size=1, max_size=2),
                "$ref": st.sampled_from(["#", "#/$defs/d", "#/nowhere", "http://x/y"]),
                "$defs": st.fixed_dictionaries({"d": child}),
                "not": child,
                "uniqueItems": st.booleans(),
                "title": st.text(max_size=3),
                "x-guidance": st.just({"lenient": True}),
            },
        ).map(lambda found: dict(random.Random(repr(found)).sample([*found.items()], min(len(found), 4))))

    return st.recursive(st.just({}) | st.booleans() | node(st.just({})), node, max_leaves=5)


def compiled(kind: Any, source: str) -> GrammarMatcher | None:
    """None if it is refused, which must fit on a line."""
    try:
        return GRAMMARS.compile(Constraint(kind, source))
    except GrammarError as error:
        message = str(error)
    assert "\n" not in message
    assert 10 < len(message) < 500
    return None


def walk(matcher: GrammarMatcher, rng: random.Random, limit: int) -> str | None:
    """A random text that the grammar accepts, or None if it does not end soon. Forced text must be allowed text."""
    mask = np.zeros(-(-TOKENIZER.vocab_size // 32), dtype=np.int32)
    out = bytearray()
    while len(out) < limit:
        if not matcher.fill(mask):
            return None
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        forced = matcher.forced()
        if forced:
            assert allowed == [forced[0]]
        if TOKENIZER.eos_ids & set(allowed) and rng.random() < 0.5:
            return out.decode()
        going_on = [i for i in allowed if i not in TOKENIZER.eos_ids]
        if not going_on:
            return out.decode()
        liked = [i for i in going_on if i in CLOSERS] or going_on
        token = rng.choice(liked if rng.random() < 0.9 else going_on)
        assert matcher.accept(token)
        out.append(token)
    return None


@settings(max_examples=400, deadline=None)
@given(schemas(), st.integers(0, 1 << 30))
def test_schemas_are_refused_or_enforced(schema: Any, seed: int) -> None:
    matcher = compiled("json_schema", json.dumps(schema))
    if matcher is None:
        return
    for i in range(3):
        text = walk(matcher.fork(), random.Random(seed + i), 120)
        if text is not None:
            value = json.loads(text)
            jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(value)
            assert json.dumps(value, ensure_ascii=False, separators=(",", ":")).count(" ") <= text.count(" ")


@settings(max_examples=600, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *"abé.*+?|()[]{}^$\\-0129,: \n",
                r"\d",
                r"\w",
                r"\b",
                "(?:",
                "(?=",
                "[^",
                "{1,2}",
                r"\1",
                "[[:alpha:]]",
                "(?i:",
            ]
        ),
        max_size=8,
    ).map("".join),
    st.integers(0, 1 << 30),
)
def test_regexes_are_refused_or_enforced(pattern: str, seed: int) -> None:
    matcher = compiled("regex", pattern)
    if matcher is None:
        return
    for i in range(3):
        text = walk(matcher.fork(), random.Random(seed + i), 60)
        if text is not None:
            assert re.fullmatch(pattern, text), (pattern, text)


@settings(max_examples=200, deadline=None)
@given(st.text('start: |"ab/[]()*+?~%{}\nABC=><^', max_size=40), st.sampled_from(["", "start: ", "root ::= "]))
def test_grammars_are_refused_or_enforced(text: str, head: str) -> None:
    matcher = compiled("ebnf", head + text)
    if matcher is not None:
        walk(matcher, random.Random(1), 30)
