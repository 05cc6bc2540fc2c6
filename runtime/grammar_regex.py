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
from lmnb.runtime.constraint_size import MOST_REGEX_CHARACTERS

if sys.version_info >= (3, 11):
    from re import _constants as codes  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:  # the same modules under their older names
    import sre_constants as codes
    import sre_parse as parser

__all__ = ["Range", "RegexRewriter", "characters", "codes", "complement", "parser", "to_rust_regex", "union"]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # not characters: UTF-8 has no form for them
_POSIX = re.compile(r"\[:\^?\w+:\]")
# Beyond it a regex takes long to read, in Python and so at the engine's cost.
_MAX_WRITTEN = 2_000_000  # with its character classes written out
_LAST_CASED = 0x1F000  # no character beyond has another case
_NEVER = r"[^\x{0}-\x{10FFFF}]"

Range = tuple[int, int]


def to_rust_regex(pattern: str) -> str:
    """`pattern` in the dialect of Rust's regex crate, matching exactly what `re.fullmatch(pattern, text)` does.

    GrammarError if Python cannot read the pattern, or if it needs what a token mask cannot follow: look-around,
    back-references, word boundaries, `^` or `$` elsewhere than at the ends, possessive or atomic groups.
    """
    if len(pattern) > MOST_REGEX_CHARACTERS and (texts := _plain_alternatives(pattern)) is not None:
        return "(?:" + "|".join("".join(_escaped(ord(char)) for char in text) for text in texts) + ")"
    rewriter = RegexRewriter(pattern)
    nodes, flags = rewriter.parse()
    try:
        return rewriter.sequence(nodes, flags, True, True)
    except (OverflowError, RecursionError) as e:
        raise GrammarError(f"regex {_shown(pattern)} is too large: {e}") from None


def _plain_alternatives(pattern: str) -> list[str] | None:
    """The texts of a pattern that is nothing but texts, escaped and joined by `|`: there may be many of them."""
    texts = [""]
    for token in re.findall(r"\\.|[^\\]", pattern, re.DOTALL):
        if token == "|":
            texts.append("")
        else:
            texts[-1] += token[-1]
    return texts if len(texts) > 1 and "|".join(map(re.escape, texts)) == pattern else None


class RegexRewriter:
    """Walks Python's own parse tree. `first` and `last`: whether nothing but the text's end lies on that side."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._classes: dict[Any, str] = {}  # text of each kind of character that was met
        self._num_written = 0  # characters of such texts

    def parse(self) -> tuple[Sequence[Any], int]:
        """The parse tree's nodes and the flags that hold for them. GrammarError if Python cannot read the pattern."""
        if len(self._pattern) > MOST_REGEX_CHARACTERS:
            raise GrammarError(
                f"regex {_shown(self._pattern)} is {len(self._pattern)} characters long; at most "
                f"{MOST_REGEX_CHARACTERS} are accepted (an enum in a JSON schema, or a grammar, may hold more)"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sets that may mean something else one day
                tree = parser.parse(self._pattern)
        except re.error as e:
            where = "" if e.pos is None else f" at position {e.pos}"
            if e.msg in (r"bad escape \p", r"bad escape \P"):
                where += "; Python has no Unicode classes, but [^\\W\\d_] is any letter"
            advice = "; write a hyphen that stands for itself as \\-" if e.msg.startswith("bad character range") else ""
            raise GrammarError(f"regex {_shown(self._pattern)} is invalid: {_one_line(e.msg)}{where}{advice}") from None
        except (OverflowError, RecursionError) as e:
            raise GrammarError(f"regex {_shown(self._pattern)} is too large: {e}") from None
        except ValueError:  # what Python says of thousands of digits
            raise GrammarError(f"regex {_shown(self._pattern)} is too large: it counts too far") from None
        self._refuse_posix()
        return tree, tree.state.flags

    def _refuse_posix(self) -> None:
        for found in _LANDMARK.finditer(self._pattern):
            posix = _POSIX.search(found.group(), 1) if found.group().startswith("[") else None
            if posix is not None:
                raise GrammarError(
                    f"regex {_shown(self._pattern)}: Python has no POSIX classes such as {posix.group()} (position "
                    f"{found.start() + posix.start()}); write the characters out, as in [a-zA-Z]"
                )

    def characters(self, op: Any, argument: Any, flags: int) -> tuple[Range, ...]:
        """The code points that one character-matching node matches."""
        return characters(op, argument, flags)

    def sequence(self, nodes: Iterable[Any], flags: int, first: bool, last: bool) -> str:
        items = list(nodes)
        inner = [i for i, (op, _) in enumerate(items) if op is not codes.AT]
        begin, end = (inner[0], inner[-1]) if inner else (len(items), -1)
        return "".join(
            self._node(op, argument, flags, first and i <= begin, last and i >= end)
            for i, (op, argument) in enumerate(items)
        )

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
            return self._class(op, argument, flags)
        raise self._refusal(op)

    def _class(self, op: Any, argument: Any, flags: int) -> str:
        key = (op, tuple(argument) if isinstance(argument, list) else argument, flags)
        text = self._classes.get(key)
        if text is None:
            text = self._classes[key] = _class_text(self.characters(op, argument, flags))
        self._num_written += len(text)
        if self._num_written > _MAX_WRITTEN:
            raise GrammarError(
                f"regex {_shown(self._pattern)} is too large once all its character classes are written out; repeat "
                "them by counts, or use smaller ones than \\w or (?i)"
            )
        return text

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
        # Only letters that have two cases are looked at in another way.
        exact = characters(op, argument, flags & ~re.IGNORECASE)
        cased = re.findall(_source(op, argument), _cased_characters(), flags & (re.IGNORECASE | re.ASCII))
        return union([*_without(exact, _cased_ranges()), *((ord(char), ord(char)) for char in cased)])
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
            ranges.extend(_category(str(value), flags & re.ASCII))
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


@lru_cache(maxsize=16)
def _category(name: str, flags: int) -> tuple[Range, ...]:
    """The characters of `\\w` and the like."""
    if "_NOT_" in name:
        return complement(_category(name.replace("_NOT_", "_"), flags))
    runs = re.finditer(f"{_CATEGORIES[name]}+", _every_character(), flags)
    return complement(complement([(ord(run.group()[0]), ord(run.group()[-1])) for run in runs]))


def _without(ranges: Sequence[Range], other: Sequence[Range]) -> tuple[Range, ...]:
    return complement([*complement(ranges), *other])


@lru_cache(maxsize=1)
def _cased_characters() -> str:
    """All characters that are not the only ones to match themselves if case does not matter."""
    found: set[str] = set()
    for char in map(chr, range(_LAST_CASED)):
        lower, upper = char.lower(), char.upper()
        if lower != char or upper != char:
            found.update(other for other in (char, lower, upper) if len(other) == 1)
    return "".join(sorted(found))


@lru_cache(maxsize=1)
def _cased_ranges() -> tuple[Range, ...]:
    return union([(ord(char), ord(char)) for char in _cased_characters()])


@lru_cache(maxsize=1)
def _every_character() -> str:
    points = np.concatenate([np.arange(_SURROGATES[0]), np.arange(_SURROGATES[1] + 1, _LAST + 1)])
    return points.astype("<u4").tobytes().decode("utf-32-le")


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
    inner_end = len(pattern.rstrip(")|$"))  # behind it nothing but the ends of groups and branches
    leading = True  # nothing but the beginnings of groups and branches so far
    for match in _LANDMARK.finditer(pattern):
        text, at = match.group(), match.start()
        if text in ("^", "\\A"):
            if not leading:
                found.append(("^", at))
        elif text in ("$", "\\Z"):
            if match.end() < inner_end:
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
