"""Nothing in a schema or a regex is lost in silence: it is enforced, by whichever library does, or refused by name
and place. The cases are written from the standards' own words."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import suppress
from typing import Any

import pytest

from lmnb.errors import ArgumentError, GrammarError
from lmnb.language.check import check_constraint
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_schema import plan_schema
from lmnb.runtime.json_patterns import FORMATS, pattern_to_rust
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

TEXT = {"type": "string"}
OBJECT = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}
OTHER = {"type": "object", "properties": {"b": TEXT}, "required": ["b"]}


@pytest.mark.parametrize(
    ("schema", "keyword", "place"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems", "#"),
        ({"properties": {"x": {"not": TEXT}}}, "not", "#/properties/x"),
        ({"if": OBJECT, "then": OTHER}, "if", "#"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired", "#"),
        ({"items": {"type": "array", "contains": TEXT}}, "contains", "#/items"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames", "#"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties", "#"),
        ({"anyOf": [TEXT, {"type": "string", "format": "phone"}]}, "format", "#/anyOf/1"),
        ({"$ref": "https://example.com/schema.json"}, "$ref", "#"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "$ref", "#/properties/a"),
        ({"$dynamicRef": "#node"}, "$dynamicRef", "#"),
        ({"enum": []}, "enum", "#"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around", "#"),
        ({"type": "string", "pattern": r"(a)\1"}, "back-references", "#"),
        ({"type": "string", "pattern": "a^b"}, "^", "#"),
        ({"type": "string", "pattern": r"\Aab\Z"}, r"\A", "#"),
        ({"type": "object", "patternProperties": {r"a$b": TEXT}}, "$", "#/patternProperties"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_what_no_library_enforces_is_refused_by_name_and_place(schema: Any, keyword: str, place: str) -> None:
    report = check_constraint(schema, samples=["{}"])
    assert report.error is not None
    assert report.engine is None
    assert keyword in report.error
    assert f"at {place}" in report.error
    assert report.accepted == [False]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        # Siblings of $ref hold together with what it points to.
        (
            {"$ref": "#/$defs/word", "maxLength": 2, "$defs": {"word": {"type": "string", "pattern": "^[a-z]*$"}}},
            ["", "ab"],
            ["abc", "A"],
        ),
        ({"allOf": [OBJECT, OTHER]}, [{"a": "", "b": ""}], [{"a": ""}, {"b": ""}, "zzz", {}]),
        ({"type": "string", "pattern": "b", "maxLength": 3, "minLength": 2}, ["ab", "abc"], ["b", "aaa", "abcd"]),
        (
            {"type": "string", "format": "date", "pattern": "^2024"},
            ["2024-02-29"],
            ["2023-02-28", "2024-02-30", "2024"],
        ),
        ({"type": "string", "format": "email", "maxLength": 7}, ["a@bc.de"], ["aa@bc.de", "a"]),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["a", 1], [None, [], 1.5]),
        ({"type": "number", "exclusiveMinimum": 0}, [0.1, 1, 0.001], [0, -1, 0.0]),
        ({"type": "integer", "minimum": 1, "maximum": 5}, [1, 3, 5], [0, 6, 10, -1, 1.5]),
        ({"type": "integer", "multipleOf": 7, "minimum": 0}, [0, 14, 49], [1, 15, -7]),
        ({"type": "array", "prefixItems": [TEXT, {"type": "null"}], "items": False}, [["a"], ["a", None]], [[None]]),
        ({"type": "object", "minProperties": 1, "maxProperties": 2}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
        (
            {"type": "object", "patternProperties": {"^x": {"const": 1}}, "additionalProperties": False},
            [{"x1": 1}],
            [{"y": 1}],
        ),
        ({"type": ["string", "null"], "maxLength": 1}, ["a", None], ["ab", 1]),
        ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}]),
        ({"enum": ["é", 1, None]}, ["é", 1, None], ["e", 2]),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_what_xgrammar_would_drop_is_enforced(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in [*valid, *invalid]]
    report = check_constraint(schema, samples=texts)
    assert report.error is None, report.error
    assert report.accepted == [True] * len(valid) + [False] * len(invalid), report


def test_order_is_no_escape_from_required() -> None:
    schema = {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]}
    report = check_constraint(
        {**schema, "type": "object"}, samples=['{"b":2}', '{"a":1,"b":2}', '{"a":1}', '{"b":3}', '{"b":2,"a":1}']
    )
    assert report.accepted == [True, True, False, False, False]
    assert [sample.position for sample in report.samples] == [None, None, 6, 5, 6]


@pytest.mark.parametrize(
    ("regex", "valid", "invalid"),
    [
        (".", ["a", "é", "😀"], ["\n", "ab", ""]),
        (r"\w+", ["é1_", "中"], ["\n", "a b"]),
        (r"(.*\n){1,2}", ["\n", "a\nb\n"], ["a", "a\nb\nc\n"]),
        (r"[^0-9]+", ["a\n"], ["1", "a1"]),
        ("[😀-🙏]+", ["😀🙏"], ["a", "✂"]),
        ("^abc$", ["abc"], ["xabc"]),
        ("(?i:yes)|no", ["YES", "yEs", "no"], ["NO"]),
        (r"[[:x]", ["[", ":", "x"], ["]"]),
    ],
)
def test_regexes_mean_what_fullmatch_means(regex: str, valid: list[str], invalid: list[str]) -> None:
    report = check_constraint(regex, samples=[*valid, *invalid])
    assert report.engine == "llguidance"
    for sample in report.samples:
        assert sample.accepted == bool(re.fullmatch(regex, sample.text)) == (sample.text in valid)


@pytest.mark.parametrize(
    ("regex", "what", "position"),
    [
        ("a^b", "^", 1),
        ("a$b", "$", 1),
        ("[[:alpha:]]+", "[:alpha:]", 1),
        ("a(?=b)", "look-around", 1),
        ("a(?<!b)c", "look-around", 1),
        (r"(a)\1", "back-references", 3),
        (r"\bword", "word boundaries", 0),
        ("a++b", "possessive", 1),
    ],
)
def test_regexes_are_refused_by_name_and_position(regex: str, what: str, position: int) -> None:
    report = check_constraint(regex=regex)
    assert report.error is not None
    assert what in report.error
    assert f"(position {position})" in report.error


def test_the_engine_is_told() -> None:
    assert check_constraint({"type": "object", "properties": {"a": {"type": "integer"}}}).engine == "xgrammar"
    assert check_constraint({"type": "string", "minLength": 1}).engine == "llguidance"
    assert check_constraint(ebnf='start: "a"').engine == "llguidance"
    assert check_constraint({"const": 1}, grammar_backend="llguidance").engine == "llguidance"
    refused = check_constraint({"type": "string", "minLength": 1}, grammar_backend="xgrammar")
    assert refused.error is not None
    assert "xgrammar" in refused.error
    assert "#" in refused.error


def test_reports_read_well() -> None:
    report = check_constraint(
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        samples=['{"name":"x"}', '{"n', '{"name":1}'],
    )
    assert str(report).splitlines() == [
        'enforced by xgrammar; begins with \'{"name":"\'',
        'accepted  \'{"name":"x"}\'',
        "rejected  '{\"n': it ends too early",
        "rejected  '{\"name\":1}': at position 8, '1'",
    ]
    assert str(check_constraint("(")).startswith("refused: ")


@pytest.mark.parametrize("samples", [5, "abc", b"abc", None, {"a": 1}, [{1, 2}]], ids=str)
def test_samples_are_a_list_of_texts_or_json(samples: Any) -> None:
    with pytest.raises(ArgumentError, match="sample"):
        check_constraint({"type": "integer"}, samples=samples)


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("b", ["abc", "b"], ["ac"]),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        ("^(a|b)$", ["a", "b"], ["ab", "xa"]),
        ("^(red|blue)$", ["red", "blue"], ["redx", "xblue", "redblue"]),
        ("^red$|^blue", ["red", "blue", "bluex"], ["redx", "xred", "xblue"]),
        (r"^\d$", ["5"], ["٣"]),
        (r"^\w$", ["a", "_"], ["é"]),
        (r"^\s$", [" ", "\ufeff", "\u2028"], ["a"]),
        ("^.$", ["a", "😀"], ["\n", "\u2028", "\r"]),
        (r"^\uD83D\uDE00$", ["😀"], ["a"]),
        (r"^(?<year>\d{4})$", ["2024"], ["24"]),
        (r"^\p{Lu}$", ["A", "É"], ["a"]),
        ("", ["", "x"], []),
    ],
)
def test_patterns_search_and_read_as_ecma_says(pattern: str, found: list[str], missed: list[str]) -> None:
    report = check_constraint(
        {"type": "string", "pattern": pattern},
        samples=[json.dumps(text, ensure_ascii=False) for text in [*found, *missed]],
    )
    assert report.error is None
    # JSON strings hold line ends as escapes only.
    for sample, text in zip(report.samples, [*found, *missed], strict=True):
        assert sample.accepted == (text in found), (pattern, text)
    assert pattern_to_rust(pattern).startswith("^")


FORMAT_CASES = {
    "date": (
        ["2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01", "0010-04-30", "0400-02-29", "0004-02-29"],
        ["0000-01-01", "0000-02-29", "0100-02-29", "2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "24-1-1"],
    ),
    "time": (["10:00:00Z", "23:59:59.5+05:30"], ["24:00:00Z", "10:00:00", "10:60:00Z", "23:59:60Z"]),
    "date-time": (["2024-02-29T10:00:00Z", "2024-01-01t00:00:00z"], ["2024-02-30T10:00:00Z", "2024-02-29 10:00:00Z"]),
    "ipv4": (["0.0.0.0", "255.1.20.199"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
    "ipv6": (
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::"],
        ["1:2:3:4:5:6:7", "1::2::3", "1:2:3:4:5:6:7:8:9", ":1", "12345::", "1:2:3:4:5:6:7:1.2.3.4"],
    ),
    "hostname": (["a", "a-b.c0", "x" * 63], ["-a", "a-", "x" * 64, "a..b", "ab--cd", "xn--a", ""]),
    "email": (
        ["a@b", "a.b+c@d-e.fr", '"a b"@c.de', "a@[127.0.0.1]", "a@[IPv6:::1]"],
        ["a", "a@", "@b", ".a@b", "a.@b", "a@-b"],
    ),
    "uuid": (
        ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"],
        ["2eb8aa08-aa98-11ea-b4aa-73b441d1638", "zeb8aa08-aa98-11ea-b4aa-73b441d16380"],
    ),
    "duration": (["P1D", "PT5M"], ["P", "1D", "PT1D"]),
    "uri": (["https://a.b/c?d#e", "mailto:x@y"], ["a b", "//x"]),
}


@pytest.mark.parametrize("name", FORMAT_CASES)
def test_formats(name: str) -> None:
    valid, invalid = FORMAT_CASES[name]
    report = check_constraint(
        {"type": "string", "format": name}, samples=[json.dumps(text) for text in [*valid, *invalid]]
    )
    assert report.error is None
    assert report.accepted == [True] * len(valid) + [False] * len(invalid), report


def test_every_format_has_cases() -> None:
    assert FORMATS.keys() <= FORMAT_CASES.keys()


def test_a_grammar_that_is_none_says_where() -> None:
    grammars = Grammars(ByteTokenizer(), 259)
    for source, message in (
        ("start: undefined\n", "undefined"),
        ("start: (", "grammar"),
        ('%llguidance {}\nstart: "a"\n', "leave that line out"),
        ("root ::= (\n", "GBNF"),
        ("start: <|im_start|>\n", "cannot be enforced"),
    ):
        with pytest.raises(GrammarError, match=re.escape(message)):
            grammars.compile(Constraint("ebnf", source))


@pytest.mark.parametrize(
    "bounds",
    [
        {"exclusiveMinimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": 1, "exclusiveMaximum": 1.5},
        {"minimum": -1.5, "exclusiveMaximum": -1},
        {"exclusiveMinimum": -2.25, "exclusiveMaximum": -2.0},
        {"minimum": 10**30},
        {"maximum": 2**53 + 1},
        {"maximum": 1e20},
        {"multipleOf": 0},
        {"multipleOf": -1},
    ],
)
def test_bounds_that_would_be_missed_are_refused(bounds: dict[str, float]) -> None:
    report = check_constraint({"type": "number", **bounds})
    assert report.error is not None
    assert str(next(iter(bounds.values()))) in report.error or "above 0" in report.error


def test_bounds_in_quarters_are_enforced() -> None:
    """All pairs of bounds, inclusive or not: what is accepted lies within, whatever the library takes them for."""
    places = [-3, -2.5, -2.25, -2, -1, -0.5, 0, 0.5, 1, 1.5, 2]
    values = [value / 8 for value in range(-28, 20)]
    texts = [json.dumps(int(value) if value == int(value) else value) for value in values]
    num_enforced = 0
    for low, high in itertools.combinations_with_replacement(places, 2):
        for below, above in itertools.product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            report = check_constraint({"type": "number", below: low, above: high}, samples=texts)
            if report.error is not None:
                continue
            num_enforced += 1
            for value, sample in zip(values, report.samples, strict=True):
                inside = (value > low or (value == low and below == "minimum")) and (
                    value < high or (value == high and above == "maximum")
                )
                assert inside or not sample.accepted, (low, below, high, above, value)
    assert num_enforced > 150


@pytest.mark.parametrize(
    "schema",
    [
        {
            "$defs": {"t": {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}, "required": ["n"]}},
            "$ref": "#/$defs/t",
        },
        {
            "$defs": {
                **{
                    f"a{i}": {
                        "type": "object",
                        "properties": {name: {"$ref": f"#/$defs/a{i + 1}"} for name in "xy"},
                        "required": ["x", "y"],
                    }
                    for i in range(12)
                },
                "a12": {"const": None},
            },
            "$ref": "#/$defs/a0",
        },
        {"type": "array", "minItems": 4000, "items": {"type": "array", "minItems": 4000, "items": {"const": None}}},
    ],
    ids=["holds itself", "doubles", "multiplies"],
)
def test_xgrammar_is_never_asked_for_endless_forced_text(schema: dict[str, Any]) -> None:
    """It would write all of it at once, until no memory is left."""
    assert plan_schema(json.dumps(schema)).engine == "llguidance"
    with pytest.raises(GrammarError, match="leave grammar_backend out"):
        plan_schema(json.dumps(schema), engine="xgrammar")
    tokenizer = ByteTokenizer()
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    matcher = grammars.compile(Constraint("json_schema", json.dumps(schema)))
    with suppress(GrammarError):  # it is too much to follow, or
        assert len(matcher.forced()) < 100_000


def test_trees_may_hold_trees() -> None:
    leaf = {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}
    tree = {"type": "object", "properties": {"left": leaf, "right": leaf}, "required": ["left", "right"]}
    report = check_constraint(
        {"$defs": {"t": tree}, "$ref": "#/$defs/t"}, samples=['{"left":{"left":null,"right":null},"right":null}', "{}"]
    )
    assert [sample.accepted for sample in report.samples] == [True, False]
