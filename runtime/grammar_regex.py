"""Python regexes as constraints: checks them and rewrites them for an engine that reads Rust's dialect.

What is rewritten means exactly what `re.fullmatch` means: every character class is spelled out from Python's own
Unicode tables, so `\\w`, `\\s`, `.` and `(?i)` cannot drift between dialects. Knows no grammar library.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from lmnb.errors import GrammarError

if sys.version_info >= (3, 11):
    from re import _constants as codes  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:  # the same modules under their older names
    import sre_constants as codes
    import sre_parse as parser

__all__ = ["Range", "RegexRewriter", "characters", "codes", "complement", "to_rust_regex", "union"]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # not characters: UTF-8 has no form for them
_POSIX = re.compile(r"\[[^\]]*(\[:\^?\w+:\])")
_NEVER = r"[^\x{0}-\x{10FFFF}]"

Range = tuple[int, int]


def to_rust_regex(pattern: str) -> str:
    """`pattern` in the dialect of Rust's regex crate, matching exactly what `re.fullmatch(pattern, text)` does.

    GrammarError if Python cannot read the pattern, or if it needs what a token mask cannot follow: look-around,
    back-references, word boundaries, `^` or `$` elsewhere than at the ends, possessive or atomic groups.
    """
    rewriter = RegexRewriter(pattern)
    nodes, flags = rewriter.parse()
    try:
        return rewriter.sequence(nodes, flags, True, True)
    except (OverflowError, RecursionError) as e:
        raise GrammarError(f"regex {_shown(pattern)} is too large: {e}") from None


class RegexRewriter:
    """Walks Python's own parse tree. `first` and `last`: whether nothing but the text's end lies on that side."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def parse(self) -> tuple[Sequence[Any], int]:
        """The parse tree's nodes and the flags that hold for them. GrammarError if Python cannot read the pattern."""
        posix = _POSIX.search(self._pattern)
        if posix is not None:
            raise GrammarError(
                f"regex {_shown(self._pattern)}: Python has no POSIX classes such as {posix.group(1)} (position "
                f"{posix.start(1)}); write the characters out, as in [a-zA-Z]"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sets that may mean something else one day
                tree = parser.parse(self._pattern)
        except re.error as e:
            where = "" if e.pos is None else f" at position {e.pos}"
            raise GrammarError(f"regex {_shown(self._pattern)} is invalid: {_one_line(e.msg)}{where}") from None
        except (OverflowError, RecursionError) as e:
            raise GrammarError(f"regex {_shown(self._pattern)} is too large: {e}") from None
        return tree, tree.state.flags

    def characters(self, op: Any, argument: Any, flags: int) -> tuple[Range, ...]:
        """The code points that one character-matching node matches."""
        return characters(op, argument, flags)

    def sequence(self, nodes: Iterable[Any], flags: int, first: bool, last: bool) -> str:
        items = list(nodes)
        is_anchor = [op is codes.AT for op, _ in items]
        out = []
        for i, (op, argument) in enumerate(items):
            at_start = first and all(is_anchor[:i])
            at_end = last and all(is_anchor[i + 1 :])
            out.append(self._node(op, argument, flags, at_start, at_end))
        return "".join(out)

    def _node(self, op: Any, argument: Any, flags: int, first: bool, last: bool) -> str:
        if op is codes.AT:
            return self._anchor(argument, first, last)
        if op is codes.BRANCH:
            return "(?:" + "|".join(self.sequence(branch, flags, first, last) for branch in argument[1]) + ")"
        if op is codes.SUBPATTERN:
            _, add, remove, body = argument
            return "(?:" + self.sequence(body, (flags | add) & ~remove, first, last) + ")"
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT):  # which is tried first does not change what can match
            low, high, body = argument
            # One round only: the ends of the body are the ends of the text, if they were before.
            once = high == 1
            inner = self.sequence(body, flags, first and once, last and once)
            return f"(?:{inner})" + "{" + f"{low}," + ("" if high is codes.MAXREPEAT else f"{high}") + "}"
        if op in (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY):
            return _class_text(self.characters(op, argument, flags))
        raise self._refusal(op)

    def _anchor(self, where: Any, first: bool, last: bool) -> str:
        if where in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING):
            if first:
                return ""
            kind = "^"
        elif where in (codes.AT_END, codes.AT_END_STRING):
            if last:
                return ""
            kind = "$"
        else:
            kind = "\\b"
        messages = {
            "^": "^ or \\A can only stand at the beginning",
            "$": "$ or \\Z can only stand at the end",
            "\\b": "word boundaries (\\b, \\B) cannot be enforced",
        }
        return self._refuse(kind, messages[kind])

    def _refusal(self, op: Any) -> GrammarError:
        names = str(op)
        if names in ("ASSERT", "ASSERT_NOT", "FAILURE"):
            return self._error("(?=", "look-around cannot be enforced")
        if names in ("GROUPREF", "GROUPREF_EXISTS"):
            return self._error("\\1", "back-references cannot be enforced")
        return self._error("(?>", "possessive and atomic groups cannot be enforced")

    def _refuse(self, kind: str, message: str) -> str:
        raise self._error(kind, message)

    def _error(self, kind: str, message: str) -> GrammarError:
        position = next((at for found, at in _landmarks(self._pattern) if found == kind), None)
        where = "" if position is None else f" (position {position})"
        return GrammarError(f"regex {_shown(self._pattern)}: {message}{where}; rewrite the pattern without it")


def characters(op: Any, argument: Any, flags: int) -> tuple[Range, ...]:
    """The code points that one character-matching node matches."""
    if op is codes.ANY:
        return complement(()) if flags & re.DOTALL else complement(((10, 10),))
    if flags & re.IGNORECASE:
        return _scan(_source(op, argument), flags & (re.IGNORECASE | re.ASCII))
    if op is codes.LITERAL:
        return ((argument, argument),)
    if op is codes.NOT_LITERAL:
        return complement(((argument, argument),))
    ranges: list[Range] = []
    negated = False
    for kind, value in argument:
        if kind is codes.NEGATE:
            negated = True
        elif kind is codes.LITERAL:
            ranges.append((value, value))
        elif kind is codes.RANGE:
            ranges.append(value)
        else:
            ranges.extend(_scan(_CATEGORIES[str(value)], flags & re.ASCII))
    found = union(ranges)
    return complement(found) if negated else found


_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def _source(op: Any, argument: Any) -> str:
    """Regex source of one character-matching node."""

    def char(code: int) -> str:
        return f"\\U{code:08x}"

    if op is codes.LITERAL:
        return char(argument)
    if op is codes.NOT_LITERAL:
        return f"[^{char(argument)}]"
    parts = []
    for kind, value in argument:
        if kind is codes.NEGATE:
            parts.append("^")
        elif kind is codes.LITERAL:
            parts.append(char(value))
        elif kind is codes.RANGE:
            parts.append(f"{char(value[0])}-{char(value[1])}")
        else:
            parts.append(_CATEGORIES[str(value)])
    return f"[{''.join(parts)}]"


@lru_cache(maxsize=256)
def _scan(source: str, flags: int) -> tuple[Range, ...]:
    """Ask Python itself which characters a one-character regex matches."""
    runs = re.finditer(f"(?:{source})+", _every_character(), flags)
    return union([r for run in runs for r in _split_at_gap(ord(run.group()[0]), ord(run.group()[-1]))])


@lru_cache(maxsize=1)
def _every_character() -> str:
    points = np.concatenate([np.arange(_SURROGATES[0]), np.arange(_SURROGATES[1] + 1, _LAST + 1)])
    return points.astype("<u4").tobytes().decode("utf-32-le")


def _split_at_gap(low: int, high: int) -> list[Range]:
    """Surrogates are missing from `_every_character`, so one run can span them."""
    if low < _SURROGATES[0] and high > _SURROGATES[1]:
        return [(low, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, high)]
    return [(low, high)]


def union(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The same code points, sorted and joined."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Every other code point, surrogates left out."""
    out: list[Range] = []
    start = 0
    for low, high in union([*ranges, _SURROGATES]):
        if start < low:
            out.append((start, low - 1))
        start = high + 1
    if start <= _LAST:
        out.append((start, _LAST))
    return tuple(out)


def _class_text(ranges: Sequence[Range]) -> str:
    """A character class in Rust's syntax; nothing in it but escapes, so no character needs care."""
    parts = []
    for low, high in complement(complement(ranges)):  # without surrogates
        parts.append(_escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}")
    if not parts:
        return _NEVER
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return parts[0]
    return f"[{''.join(parts)}]"


def _escaped(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"


_LANDMARK = re.compile(
    r"""\\[bB] | \\[AZ] | \\[1-9] | \\. | \(\?P= | \(\?\( | \(\?<?[=!] | \(\?> | \[\^?\]?(?:\\.|[^\]\\])*\]
    | [*+?}]\+ | \^ | \$ | \(\?P<\w+> | \(\?[a-zA-Z-]*[:)] | .""",
    re.VERBOSE | re.DOTALL,
)


def _landmarks(pattern: str) -> list[tuple[str, int]]:
    """Where the constructs stand that cannot be enforced, as (kind, position). The parse tree has no positions."""
    found = []
    leading = True  # nothing but the beginnings of groups and branches so far
    for match in _LANDMARK.finditer(pattern):
        text, at = match.group(), match.start()
        if text in ("^", "\\A"):
            if not leading:
                found.append(("^", at))
        elif text in ("$", "\\Z"):
            if re.search(r"[^)|$]", pattern[match.end() :]):
                found.append(("$", at))
        elif text in ("\\b", "\\B"):
            found.append(("\\b", at))
        elif re.fullmatch(r"\\[1-9]|\(\?P=|\(\?\(", text):
            found.append(("\\1", at))
        elif re.fullmatch(r"\(\?<?[=!]", text):
            found.append(("(?=", at))
        elif text == "(?>" or re.fullmatch(r"[*+?}]\+", text):
            found.append(("(?>", at))
        leading = (leading and (text.startswith("(") or text in ("^", "\\A"))) or text == "|"
    return found


def _one_line(message: str) -> str:
    return message.replace("\n", "\\n").replace("\r", "\\r")


def _shown(pattern: str) -> str:
    """The pattern on one line and not too long."""
    text = repr(pattern)
    return text if len(text) <= 80 else text[:77] + "...'"
