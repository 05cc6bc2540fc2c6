"""Properties of every name, beside others or alone: the grammar and the validator are of one opinion."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from lmnb.errors import GrammarError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, cache_size=2)
END = min(TOKENIZER.eos_ids)
NAMES = [
    "", '"', "\\", "\n", "/", "é", "e\u0301", "😀", "__proto__", " ", "$ref", "not", "enum", "~", "%", "#", "a.b",
    "[0]", "}", "\u2028", "properties", "x-guidance", "\ufeff", "null", "0", "ﬁ", "a" * 900,
]  # fmt: skip
BESIDE: list[dict[str, Any]] = [
    {"additionalProperties": False},
    {"additionalProperties": {"type": "string"}},
    {"patternProperties": {"^zz": {"type": "null"}}, "additionalProperties": False},
    {"minProperties": 1, "additionalProperties": False},
    {"additionalProperties": True, "if": {"required": ["q"]}, "then": {"properties": {"zz": False}}},
]


def compiled(source: str) -> GrammarMatcher:
    return GRAMMARS.compile(Constraint("json_schema", source))


def accepts(matcher: GrammarMatcher, value: Any) -> bool:
    copy = matcher.fork()
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("\x7f", r"\u007f")
    return all(copy.accept(byte) for byte in text.encode()) and copy.accept(END)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_names_are_themselves(name: str) -> None:
    for beside in BESIDE:
        schema = {"type": "object", "properties": {name: {"type": "integer"}, "q": {"type": "boolean"}}, **beside}
        matcher = compiled(json.dumps(schema))
        validator = jsonschema.Draft202012Validator(schema)
        for value in ({name: 1}, {name: 1, "q": True}, {name: "x"}, {"q": True}, {}, {name + "x": "s"}, {"zz": None}):
            assert accepts(matcher, value) == validator.is_valid(value), (schema, value)


@pytest.mark.parametrize("name", ["\x01", "\x7f"])
def test_names_of_control_characters_stand_alone(name: str) -> None:
    """They can be written by their codes only, and so could all others: no other name may be allowed beside them."""
    schema: dict[str, Any] = {"type": "object", "properties": {name: {"type": "integer"}}}
    assert accepts(compiled(json.dumps(schema)), {name: 1})
    with pytest.raises(GrammarError, match="additionalProperties: false"):
        compiled(json.dumps({**schema, "additionalProperties": {"type": "string"}}))


def test_very_long_names_stand_alone() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a" * 10_000: {"type": "integer"}}}
    assert accepts(compiled(json.dumps(schema)), {"a" * 10_000: 1})
    with pytest.raises(GrammarError, match="10000 characters"):
        compiled(json.dumps({**schema, "additionalProperties": True}))


@pytest.mark.parametrize(
    "source",
    [r'{"const":"\ud800"}', r'{"properties":{"\uDC00":true}}', r'{"required":["a\udfff"]}', r'{"title":"\ud800"}'],
)
def test_halves_of_characters_are_refused(source: str) -> None:
    with pytest.raises(GrammarError, match="half a surrogate pair"):
        compiled(source)
    assert accepts(compiled(r'{"const":"\ud83d\ude00"}'), "😀")
