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
        ({"properties": {"x": {"not": {"type": "string", "pattern": "a"}}}}, "not", "#/properties/x"),
        ({"if": {"type": "integer"}, "then": OTHER}, "if", "#"),
        ({"if": {"properties": {"a": {"format": "date"}}}, "then": OTHER}, "if", "#"),
        ({"type": "object", "dependentRequired": {f"a{i}": ["b"] for i in range(7)}}, "dependentRequired", "#"),
        ({"items": {"type": "array", "contains": TEXT}}, "contains", "#/items"),
        ({"type": "object", "propertyNames": {"maxLength": 3, "pattern": "a"}}, "propertyNames", "#"),
        ({"type": "array", "contains": TEXT, "unevaluatedItems": False}, "unevaluatedItems", "#"),
        ({"type": "object", "minProperties": 2}, "minProperties", "#"),
        ({"$schema": "https://example.com/my-dialect", "type": "string"}, "$schema", "#"),
        ({"properties": {"a": {"const": 2**53 + 1}}}, "const", "#/properties/a"),
        ({"enum": [1, {"a": 1e30}]}, "enum", "#"),
        ({"type": "integer", "multipleOf": 4294967291}, "multipleOf", "#"),
        ({"allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]}, "multipleOf", "#/allOf/0"),
        (
            {"$defs": {"a": {"$dynamicAnchor": "n"}, "b": {"$dynamicAnchor": "n"}}, "$dynamicRef": "#n"},
            "several places",
            "#",
        ),
        (
            {"type": "object", "properties": {"a\x01": TEXT, "b": {"type": "integer"}}, "required": ["c"]},
            "control",
            "#",
        ),
        ({"anyOf": [TEXT, {"type": "string", "format": "phone"}]}, "format", "#/anyOf/1"),
        ({"$ref": "https://example.com/schema.json"}, "$ref", "#"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "$ref", "#/properties/a"),
        ({"$dynamicRef": "#node"}, "$dynamicRef", "#"),
        ({"items": {"$ref": "other.json#/a"}}, "$ref", "#/items"),
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


def test_short_escapes_write_no_excluded_character() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": r"^[^\\]*$"}},
        "additionalProperties": {"type": "integer"},
        "required": ["a"],
    }
    report = check_constraint(schema, samples=[{"a": "\\"}, {"a": "\n"}, {"a": '"'}])
    assert report.accepted == [False, True, True], report


def test_half_a_character_is_no_sample_of_anything() -> None:
    report = check_constraint(regex=r"a\?|.+", samples=["a\ud800", "\udc00", "a?", "aé\udfffb"])
    assert [(sample.accepted, sample.position) for sample in report.samples] == [
        (False, 1), (False, 0), (True, None), (False, 2)
    ]  # fmt: skip
    assert check_constraint({"type": "object"}, samples=[{"a": "\ud800"}]).accepted == [False]
    str(report).encode()


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
        (r"^[^]a]?$|^b[]$", ["xa]", "]a]", "xa"], ["x", "a", "b", "b]"]),
        (r"^[^]$", ["\n", "a", "]", "\0"], ["ab", ""]),
        (r"^\u{1F600}\cJ\x41\/\_\0?$", ["😀\nA/_", "😀\nA/_\0"], ["u{1F600}\nA/_"]),
        (r"^a{x}]$", ["a{x}]"], ["a"]),
        (r"^[\w.\-&&|~~a]$", ["a", "&", "|", "-", "~"], ["é", "^"]),
        (r"^(?i:[^k-l]a)$", ["xA"], ["Ka", "\u212aa", "kA"]),
        (r"^[^\\]$", ['"', "\n", "\x01", "a", "é"], ["\\"]),
        (r'^[^"]+$', ["\\\n", "\x1f"], ['"', 'a"']),
        (r"^[\x00-\x1f]$", ["\n", "\x01"], ["\\", '"']),
        (r"^(?:\s|[^\\a])*$", ["", "b\n"], ["\\", "b\\", "a"]),
        (r"^[^a]$", ['"', "\\", "\0"], ["a"]),
        (r"^\P{Po}$", ["a", "\n"], ['"', "\\"]),
        (r"^\p{Cc}[^\p{L}\\]$", ["\n1", '\n"'], ['"1', "\n\\", "\\1"]),
        (r"^[\P{L}][\p{Cc}a]$", ["\\\n", "1a"], ['1"', "a\n", "1\\"]),
        (r"^[^\P{Cc}]$", ["\n"], ['"', "\\"]),
        (r"^[^\p{L}&&a]$", ["1", "!"], ["é", "a", "&"]),
        (r"^[\p{L}[a-z]]$", ["é]", "[]", "a]"], ["a", "1]"]),
        (r"^[\p{L}&&a]$", ["é", "&"], ["1"]),
        (r"^[\p{L}~~+--9\-]$", ["é", "~", ",", "9", "-"], [" ", "2", "a-"]),
        (r"^(?:\p{Lu}|\p{Script=Greek}){2}\.\u0041$", ["Éα.A"], ["éα.A", "Éα!A"]),
        (r"^\p{Nd}\$", ["1$", "1$x"], ["1", "x1$"]),
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


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("^x{,3}$", "'{,3}' (position 2)"),
        (r"^\a$", "'\\\\a' (position 1)"),
        (r"^[a\Z]$", "'\\\\Z' (position 3)"),
        (r"^\U00000041$", "'\\\\U' (position 1)"),
        (r"^\101$", "back-references"),
        (r"^[\101]$", "'\\\\1' (position 2)"),
        (r"^\012$", "'\\\\0' (position 1)"),
        (r"(a)\k<b>", "back-references"),
        (r"^\N{BULLET}$", "'\\\\N' (position 1)"),
        ("^(?P<n>a)$", "'(?P<n>' (position 1)"),
        ("(?i)a", "'(?i)' (position 0)"),
        ("^(?x: a)$", "'(?x:' (position 1)"),
        ("^(?#a)b$", "'(?#' (position 1)"),
        ("^(?>a)b$", "'(?>' (position 1)"),
        (r"^\p{ L }$", "no property of that name"),
        (r"^\p{lu}$", "no property of that name"),
        (r"^\p{greek}$", "no property of that name"),
        (r"^\p{Greek}$", "no property of that name"),
        (r"^[a\p{L}-z]$", "hyphen"),
        (r"^\p{L}[\da]$", "beside"),
        (r"^\p{L}|a$", "anyOf"),
        ("^[a", "does not end"),
        ("a\\", "position 1"),
    ],
)
def test_patterns_that_ecma_has_not_are_refused_by_name(pattern: str, what: str) -> None:
    report = check_constraint({"type": "string", "pattern": pattern})
    assert report.error is not None
    assert what in report.error


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
    "json-pointer": (["", "/a/0", "/~0~1", "//"], ["a", "/~", "/~2", "#"]),
    "relative-json-pointer": (["0", "1/a", "2#", "0+1/b", "10"], ["", "/a", "01", "-1", "0##"]),
    "base64": (["", "aGk=", "aGFs", "Zg=="], ["aGk", "aGFsa", "=", "a-b="]),
    "byte": (["", "aGk="], ["aGk"]),
    "uri": (["https://a.b/c?d#e", "mailto:x@y"], ["a b", "//x"]),
    "uri-reference": (
        ["", "a", "/a/b", "../x?y=/#z", "//x", "//[::1]:80/", "http://u:p@h/%20", "a:b", "./a:b", "#f", "?q"],
        ["a b", "\\\\x", "%2", "é", "http://[::1", ":a", "1:b/c", "a#b#c", "[a]"],
    ),
    "iri": (["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "urn:é"], ["/é", "é", "http://2001:db8::1/", "a:<b>"]),
    "iri-reference": (["âππ", "//ƒøø.ßår/", "#ƒrägmênt", ""], ["\\\\WINDOWS\\é", "#ƒräg\\mênt", "a b"]),
    "uri-template": (
        ["", "http://x/{id}", "{?a,b*,c:3}", "{+x.y}é", "a%20{/v}"],
        ["{", "{}", "{a", "a}", "{a,}", "{a:0}", "{a:12345}", "a b", "%2", "{a b}", "<x>"],
    ),
}


@pytest.mark.parametrize("name", FORMAT_CASES)
def test_formats(name: str) -> None:
    valid, invalid = FORMAT_CASES[name]
    samples = [json.dumps(text, ensure_ascii=False) for text in [*valid, *invalid]]
    report = check_constraint({"type": "string", "format": name}, samples=samples)
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
        ("start: <|im_start|>\n", "names tokens"),
    ):
        with pytest.raises(GrammarError, match=re.escape(message)):
            grammars.compile(Constraint("ebnf", source))


@pytest.mark.parametrize(
    "bounds",
    [
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
    """All pairs of bounds, inclusive or not: accepted is what lies within, and nothing else."""
    places = [-3, -2.5, -2.25, -2, -1, -0.5, 0, 0.5, 1, 1.5, 2]
    values = [value / 8 for value in range(-28, 20)]
    texts = [json.dumps(int(value) if value == int(value) else value) for value in values]
    for low, high in itertools.combinations_with_replacement(places, 2):
        for below, above in itertools.product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            report = check_constraint({"type": "number", below: low, above: high}, samples=texts)
            if report.error is not None:
                assert low == high
                continue
            for value, sample in zip(values, report.samples, strict=True):
                inside = (value > low or (value == low and below == "minimum")) and (
                    value < high or (value == high and above == "maximum")
                )
                assert inside == sample.accepted, (low, below, high, above, value)


@pytest.mark.parametrize(
    "schema",
    [
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
    ids=["doubles", "multiplies"],
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


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        *(("int8", -128, 127), ("uint8", 0, 255), ("int16", -32768, 32767), ("uint16", 0, 65535)),
        *(("int32", -(2**31), 2**31 - 1), ("uint32", 0, 2**32 - 1), ("int64", -(2**63) + 1024, 2**63 - 1)),
        *(("uint64", 0, 2**63 - 1), ("uint", 0, 2**63 - 1), ("int", -(2**63) + 1024, 2**63 - 1)),
    ],
)
def test_formats_of_whole_numbers(name: str, low: int, high: int) -> None:
    report = check_constraint({"type": "integer", "format": name}, samples=[low, high, 0, 7, low - 1, high + 1])
    assert report.accepted == [True] * 4 + [False] * 2
    bounds = {"minimum": -(2**63) if low == -(2**63) + 1024 else low, "maximum": high}
    report = check_constraint({"type": "integer", **bounds}, samples=[low, high, 0, 7, low - 1, high + 1])
    assert report.accepted == [True] * 4 + [False] * 2
    assert check_constraint({"type": "integer", "exclusiveMinimum": -(2**63)}, samples=[-5, low - 1]).accepted[0]
