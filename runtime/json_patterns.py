"""JSON Schema's `pattern` and `format` as regexes in Rust's dialect, whole-match, with the standards' own meaning.

A pattern is ECMA 262's: it searches, `.` matches no line end, `\\d` and `\\w` are ASCII. Formats are those of
RFC 3339, 3986, 3987, 4291, 5321, 6570 and 1123, without leap seconds, the year 0000 and internationalised host names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lmnb.runtime.ecma_syntax import Token, beside_properties, has_properties, to_python, to_rust, tokens
from lmnb.runtime.grammar_regex import Range, RegexRewriter, characters, codes, complement, union
from lmnb.runtime.ip_patterns import IPV4, IPV6
from lmnb.runtime.uri_patterns import IRI, IRI_REFERENCE, URI_REFERENCE, URI_TEMPLATE

_ANY = r"[\x{0}-\x{10FFFF}]*"
_LINE_ENDS: tuple[Range, ...] = ((0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029))
_SPACES: tuple[Range, ...] = (
    (0x9, 0xD), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_DIGITS: tuple[Range, ...] = ((0x30, 0x39),)
_WORD: tuple[Range, ...] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_CATEGORIES: dict[str, tuple[Range, ...]] = {
    "CATEGORY_DIGIT": _DIGITS,
    "CATEGORY_NOT_DIGIT": complement(_DIGITS),
    "CATEGORY_SPACE": _SPACES,
    "CATEGORY_NOT_SPACE": complement(_SPACES),
    "CATEGORY_WORD": _WORD,
    "CATEGORY_NOT_WORD": complement(_WORD),
}


def pattern_to_rust(pattern: str) -> str:
    """`pattern`, which may match anywhere in a string, as a regex for the whole string, anchored on both sides.

    GrammarError for what neither dialect has, or a mask cannot follow.
    """
    parts = list(tokens(pattern))
    if has_properties(parts):
        return _with_properties(pattern, parts)
    source = to_python(pattern, parts)
    rewriter = _EcmaRewriter(source)
    return "^(?:" + "|".join(_alternatives(rewriter, *rewriter.parse())) + ")$"


class _EcmaRewriter(RegexRewriter):
    """Classes as ECMA 262 has them."""

    def characters(self, op: Any, argument: Any, flags: int) -> tuple[Range, ...]:
        if op is codes.ANY:
            return complement(() if flags & re.DOTALL else _LINE_ENDS)
        if op in (codes.LITERAL, codes.NOT_LITERAL):
            negated, items = op is codes.NOT_LITERAL, [(codes.LITERAL, argument)]
        else:
            negated = argument[0][0] is codes.NEGATE
            items = argument[1:] if negated else argument
        ranges = [r for kind, value in items if kind is codes.CATEGORY for r in _CATEGORIES[str(value)]]
        plain = [item for item in items if item[0] is not codes.CATEGORY]
        if plain:
            # Dialects differ in which letters are another's other case: what one of them may leave out is left out.
            ranges.extend(characters(codes.IN, plain, flags & ~re.ASCII if negated else flags | re.ASCII))
        return _quotable(complement(union(ranges)) if negated else union(ranges))


def _quotable(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Without U+0000, where the library would go wrong: it takes a class that holds all control characters to hold the
    quotation mark and the backslash, too."""
    outside = complement(ranges)
    if any(low <= 0x1F for low, _ in outside) or not any(
        low <= c <= high for low, high in outside for c in (0x22, 0x5C)
    ):
        return ranges
    return complement([*outside, (0, 0)])


def _alternatives(rewriter: _EcmaRewriter, nodes: Sequence[Any], flags: int) -> list[str]:
    """The pattern's top-level branches, each for the whole string."""
    items = list(nodes)
    lead, trail = 0, len(items)
    while lead < trail and _is_anchor(items[lead], codes.AT_BEGINNING):
        lead += 1
    while trail > lead and _is_anchor(items[trail - 1], codes.AT_END):
        trail -= 1
    inner = items[lead:trail]
    if len(inner) == 1 and inner[0][0] is codes.BRANCH:
        branches = [[*items[:lead], *branch, *items[trail:]] for branch in inner[0][1][1]]
        return [text for branch in branches for text in _alternatives(rewriter, branch, flags)]
    if len(inner) == 1 and inner[0][0] is codes.SUBPATTERN:
        _, add, remove, body = inner[0][1]
        return _alternatives(rewriter, [*items[:lead], *body, *items[trail:]], (flags | add) & ~remove)
    before, after = "" if lead else _ANY, "" if trail < len(items) else _ANY
    return [f"(?:{before}{rewriter.sequence(inner, flags, False, False)}{after})"]


def _is_anchor(node: Any, which: Any) -> bool:
    return bool(node[0] is codes.AT and node[1] is which)


def _with_properties(pattern: str, parts: list[Token]) -> str:
    """A pattern with Unicode classes, which Python's parser does not know, goes to Rust's dialect as it is, unless
    something in it means another thing there."""
    inner = list(parts)
    starts = bool(inner) and inner[0].text == "^"
    ends = bool(inner) and inner[-1].text == "$"
    inner = inner[starts : len(inner) - ends]
    depth = 0
    for token in inner:
        depth += (token.kind == "group") - (token.text == ")")
        if token.text in ("^", "$") or (token.text == "|" and depth == 0):
            raise beside_properties(pattern, token, "use anyOf")
    before, after = "" if starts else _ANY, "" if ends else _ANY
    return f"^{before}{''.join(to_rust(pattern, token) for token in inner)}{after}$"


# Without the year 0000, which RFC 3339 has and no Python date.
_DATE = (
    r"(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LETTER, _INNER = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"
# Up to 63 characters; not two hyphens in the third and fourth place, which only encoded names have.
_LABEL = (
    f"{_LETTER}(?:{_LETTER}|{_INNER}{_LETTER}|{_INNER}{{2}}{_LETTER}"
    f"|{_INNER}(?:{_LETTER}{_INNER}|-{_LETTER}){_INNER}{{0,58}}{_LETTER})?"
)
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'

# RFC 6901, and the draft on relative ones.
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_RELATIVE_POINTER = rf"(?:0|[1-9][0-9]*)(?:[+-][1-9][0-9]*)?(?:#|{_POINTER})"
# RFC 4648, section 4, padded.
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"

# By format: the regex, and the most characters (None: the regex says it all).
FORMATS: dict[str, tuple[str, int | None]] = {
    "date": (_DATE, None),
    "time": (_TIME, None),
    "date-time": (f"{_DATE}[Tt]{_TIME}", None),
    "ipv4": (IPV4, None),
    "ipv6": (IPV6, None),
    "hostname": (_HOSTNAME, 253),
    "email": (rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOSTNAME}|\[{IPV4}\]|\[IPv6:{IPV6}\])", 254),
    "json-pointer": (_POINTER, None),
    "relative-json-pointer": (_RELATIVE_POINTER, None),
    "uri-reference": (URI_REFERENCE, None),
    "iri": (IRI, None),
    "iri-reference": (IRI_REFERENCE, None),
    "uri-template": (URI_TEMPLATE, None),
    "base64": (_BASE64, None),
    "byte": (_BASE64, None),
}
