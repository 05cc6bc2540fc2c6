"""JSON Schema's `pattern` and `format` as regexes in Rust's dialect, whole-match, with the standards' own meaning.

A pattern is ECMA 262's: it searches, `.` matches no line end, `\\d` and `\\w` are ASCII. Formats are those of
RFC 3339, 4291, 5321 and 1123, without leap seconds, the year 0000 and internationalised host names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lmnb.errors import GrammarError
from lmnb.runtime.grammar_regex import Range, RegexRewriter, characters, codes, complement, union

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
    if re.search(r"\\[pP]\{", pattern):
        return _with_properties(pattern)
    if re.search(r"(?<!\\)(\\\\)*\\[AZ]", pattern):
        raise GrammarError(f"pattern {pattern[:60]!r}: \\A and \\Z are no anchors in JSON Schema; use ^ and $")
    source = re.sub(r"\(\?<(?![=!])", "(?P<", pattern)
    source = re.sub(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..", _join_surrogates, source)
    rewriter = _EcmaRewriter(source)
    return "^(?:" + "|".join(_alternatives(rewriter, *rewriter.parse())) + ")$"


class _EcmaRewriter(RegexRewriter):
    """Classes as ECMA 262 has them."""

    def characters(self, op: Any, argument: Any, flags: int) -> tuple[Range, ...]:
        if op is codes.ANY and not flags & re.DOTALL:
            return complement(_LINE_ENDS)
        if op is not codes.IN or flags & re.IGNORECASE:
            return characters(op, argument, flags | re.ASCII)
        ranges: list[Range] = []
        for kind, value in argument:
            if kind is codes.CATEGORY:
                ranges.extend(_CATEGORIES[str(value)])
            elif kind is not codes.NEGATE:
                ranges.append((value, value) if kind is codes.LITERAL else value)
        negated = argument[0][0] is codes.NEGATE
        return complement(union(ranges)) if negated else union(ranges)


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


def _with_properties(pattern: str) -> str:
    """A pattern with Unicode classes, which Python's parser does not know, goes to Rust's dialect as it is, unless
    something in it means another thing there."""
    other = re.search(r"\\[dDsSwWbBAZ1-9]|(?<!\\)\.|\(\?", pattern)
    if other:
        raise GrammarError(
            f"pattern {pattern[:60]!r}: {other.group()!r} beside \\p{{...}} cannot be enforced (position "
            f"{other.start()}); write the characters out"
        )
    before, after = "" if pattern.startswith("^") else _ANY, "" if pattern.endswith("$") else _ANY
    inner = pattern.removeprefix("^").removesuffix("$")
    if re.search(r"(?<![\\\[])\^|(?<!\\)[$|]", inner):
        raise GrammarError(f"pattern {pattern[:60]!r}: |, ^ and $ beside \\p{{...}} cannot be enforced; use anyOf")
    return f"^{before}{inner}{after}$"


def _join_surrogates(match: re.Match[str]) -> str:
    high, low = (int(part, 16) for part in match.group().split("\\u")[1:])
    return f"\\U{0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF):08x}"


# Without the year 0000, which RFC 3339 has and no Python date.
_DATE = (
    r"(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = "[0-9a-fA-F]{1,4}"


def _ipv6() -> str:
    tail = f"(?:{_HEX}:{_HEX}|{_IPV4})"  # the last 32 bits
    forms = [f"(?:{_HEX}:){{6}}{tail}"]
    # `::` stands for what is missing: n groups before it at most, and m behind it.
    for behind in range(6, -1, -1):
        after = f"(?:{_HEX}:){{{behind - 2}}}{tail}" if behind >= 2 else _HEX if behind else ""
        most = 7 - behind
        before = f"(?:(?:{_HEX}:){{0,{most - 1}}}{_HEX})?" if most else ""
        forms.append(f"{before}::{after}")
    return "(?:" + "|".join(forms) + ")"


_LETTER, _INNER = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"
# Up to 63 characters; not two hyphens in the third and fourth place, which only encoded names have.
_LABEL = (
    f"{_LETTER}(?:{_LETTER}|{_INNER}{_LETTER}|{_INNER}{{2}}{_LETTER}"
    f"|{_INNER}(?:{_LETTER}{_INNER}|-{_LETTER}){_INNER}{{0,58}}{_LETTER})?"
)
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'

# By format: the regex, and the most characters (None: the regex says it all).
FORMATS: dict[str, tuple[str, int | None]] = {
    "date": (_DATE, None),
    "time": (_TIME, None),
    "date-time": (f"{_DATE}[Tt]{_TIME}", None),
    "ipv4": (_IPV4, None),
    "ipv6": (_ipv6(), None),
    "hostname": (_HOSTNAME, 253),
    "email": (rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOSTNAME}|\[{_IPV4}\]|\[IPv6:{_ipv6()}\])", 254),
}
