"""The syntax of ECMA 262's regexes, as JSON Schema's patterns have it, in that of Python's parser or of Rust's.

What another dialect reads otherwise is written so that it means the same there; what ECMA 262 has not, or has only
where browsers keep old mistakes, is refused by name and position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lmnb.errors import GrammarError

_TOKEN = re.compile(
    r"""(?P<escape>\\(?:
        u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2} | u[0-9a-fA-F]{4} | u\{0*[0-9a-fA-F]{1,6}\}
        | x[0-9a-fA-F]{2} | c[A-Za-z] | [pP]\{[^{}]*\} | 0(?![0-9]) | [dDsSwWbBfnrtv] | [^\w] | _))
    | (?P<reference>\\[1-9] | \\k<)
    | (?P<group>\((?:\?(?:[:=!] | <[=!] | [ims]+(?:-[ims]+)?: | -[ims]+: | <[^\W\d]\w*>) | (?!\?)))
    | (?P<count>\{[0-9]+(?:,[0-9]*)?\})
    | (?P<unknown>\\[\s\S]? | \(\?(?:P?<(?:\w*>)? | P?[=>] | [a-zA-Z-]+[:)]? | .)? | \{,[0-9]*\})
    | (?P<other>[\s\S])""",
    re.VERBOSE,
)
# Of ECMA 262's general categories, each in its two or three names.
_CATEGORIES = (
    "L|Letter|LC|Cased_Letter|Lu|Uppercase_Letter|Ll|Lowercase_Letter|Lt|Titlecase_Letter|Lm|Modifier_Letter"
    "|Lo|Other_Letter|M|Mark|Combining_Mark|Mn|Nonspacing_Mark|Mc|Spacing_Mark|Me|Enclosing_Mark|N|Number|Nd"
    "|Decimal_Number|digit|Nl|Letter_Number|No|Other_Number|P|Punctuation|punct|Pc|Connector_Punctuation|Pd"
    "|Dash_Punctuation|Ps|Open_Punctuation|Pe|Close_Punctuation|Pi|Initial_Punctuation|Pf|Final_Punctuation|Po"
    "|Other_Punctuation|S|Symbol|Sm|Math_Symbol|Sc|Currency_Symbol|Sk|Modifier_Symbol|So|Other_Symbol|Z"
    "|Separator|Zs|Space_Separator|Zl|Line_Separator|Zp|Paragraph_Separator|C|Other|Cc|Control|cntrl|Cf|Format"
    "|Cs|Surrogate|Co|Private_Use|Cn|Unassigned"
)
_BINARY = (
    "ASCII|Any|Assigned|Alphabetic|Alpha|Lowercase|Lower|Uppercase|Upper|White_Space|space|ASCII_Hex_Digit"
    "|AHex|Hex_Digit|Hex|ID_Start|IDS|ID_Continue|IDC|XID_Start|XIDS|XID_Continue|XIDC|Ideographic|Ideo|Math"
    "|Dash|Diacritic|Dia|Cased|Emoji|Emoji_Presentation|Emoji_Modifier|Emoji_Modifier_Base|Emoji_Component"
    "|Extended_Pictographic"
)
_PROPERTY = re.compile(
    rf"(?:(?:General_Category|gc)=)?(?:{_CATEGORIES})|{_BINARY}"
    "|(?:Script|sc|Script_Extensions|scx)=[A-Z][a-z]+(?:_[A-Z][a-z]+)*"
)
_NAMED_CODES = {"f": 0xC, "n": 0xA, "r": 0xD, "t": 0x9, "v": 0xB, "0": 0x0}


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a pattern. `kind`: "escape", "group", "count", "class" (a whole one) or "other" (one character)."""

    text: str
    kind: str
    at: int
    members: tuple[Token, ...] = ()  # of a class: escapes and characters


def tokens(pattern: str) -> Iterator[Token]:
    """The parts of `pattern`. GrammarError for what ECMA 262 has not, and for back-references."""
    at = 0
    while at < len(pattern):
        token = _next(pattern, at)
        at += len(token.text)
        if token.text != "[":
            yield token
            continue
        members = []
        begin = token.at
        at += pattern.startswith("^", at)
        head = pattern[begin:at]
        while True:
            if at >= len(pattern):
                raise refused(pattern, head, begin, "this class does not end; write a bracket that is meant as \\[")
            if pattern[at] == "]":
                break
            member = _next(pattern, at, in_class=True)
            members.append(member)
            at += len(member.text)
        at += 1
        yield Token(pattern[begin:at], "class", begin, tuple(members))


def _next(pattern: str, at: int, *, in_class: bool = False) -> Token:
    if in_class and pattern[at] != "\\":
        return Token(pattern[at], "other", at)
    found = _TOKEN.match(pattern, at)
    assert found is not None  # the last alternative takes any character
    kind, text = str(found.lastgroup), found[0]
    if kind == "reference" and not in_class:
        raise refused(pattern, text, at, "back-references cannot be enforced")
    if kind in ("unknown", "reference"):
        raise refused(
            pattern, text, at, f"ECMA 262, whose patterns JSON Schema has, knows no such thing; {_advice(text)}"
        )
    if kind == "escape" and text[1] in "pP" and _PROPERTY.fullmatch(text[3:-1]) is None:
        raise refused(
            pattern, text, at, "ECMA 262 knows no property of that name; write it as in \\p{Lu} or \\p{Script=Greek}"
        )
    return Token(text, kind, at)


def _advice(text: str) -> str:
    if text[0] == "{":
        return "write {0" + text[1:]
    if text[0] == "\\":
        return "use ^ and $" if text[1:] in ("A", "Z", "z") else "write the character itself, or its code as \\u0041"
    if text.startswith("(?P<"):
        return "write (?<name>...)"
    return "write (?i:...) around all of it" if text == "(?i)" else "write the pattern without it"


def refused(pattern: str, text: str, at: int, why: str) -> GrammarError:
    """What is said of `text`, which stands at `at`."""
    return GrammarError(f"pattern {pattern[:60]!r}: {text[:30]!r} (position {at}): {why}")


def has_properties(parts: list[Token]) -> bool:
    """Whether Unicode classes are among them."""
    return any(_is_property(token) or any(map(_is_property, token.members)) for token in parts)


def _is_property(token: Token) -> bool:
    return token.kind == "escape" and token.text[1] in "pP"


def to_python(pattern: str, parts: list[Token]) -> str:
    """The same regex for Python's parser, which knows no Unicode classes; most of it as it is written."""
    return "".join(_translated(pattern, token, _python_escape) for token in parts)


def _translated(pattern: str, token: Token, escape: Callable[[str], str]) -> str:
    if token.kind == "escape":
        return escape(token.text)
    if token.kind == "group" and token.text.endswith(">"):
        return "(?P" + token.text[2:]
    if token.kind != "class":
        return token.text
    if not token.members:  # no character, and any
        return "[^\\s\\S]" if token.text == "[]" else "[\\s\\S]"
    head = "[^" if token.text.startswith("[^") else "["
    return head + "".join(escape(m.text) if m.kind == "escape" else m.text for m in token.members) + "]"


def _python_escape(text: str) -> str:
    if text[1] == "c" or text.startswith("\\u{") or text.count("\\u") == 2:
        return f"\\U{code_of(text):08x}"
    return text


def to_rust(pattern: str, token: Token) -> str:
    """A part beside Unicode classes, for Rust's parser. GrammarError for what means something else there."""
    if token.kind == "class":
        if not token.members:
            return r"[^\x{0}-\x{10FFFF}]" if token.text == "[]" else r"[\x{0}-\x{10FFFF}]"
        members = "".join(_rust_members(pattern, token.members))
        return f"[^{members}\\x{{0}}]" if token.text.startswith("[^") else _without_zero(f"[{members}]")
    if _is_property(token):
        return _without_zero(token.text)
    if token.kind == "count" or token.text in ("(", "(?:"):
        return token.text
    if token.kind == "group" or (token.kind == "escape" and token.text[1] in "dDsSwWbB") or token.text == ".":
        raise beside_properties(pattern, token, "write the characters out")
    return token.text if token.text in "()*+?|" else _rust_code(code_of(token.text))


def _without_zero(text: str) -> str:
    """As the library takes a class with all control characters to hold the quotation mark and the backslash, too."""
    return f"[{text}--\\x{{0}}]"


def _rust_members(pattern: str, members: tuple[Token, ...]) -> Iterator[str]:
    i = 0
    while i < len(members):
        ends = [members[i]]
        if i + 2 < len(members) and members[i + 1].text == "-":
            ends.append(members[i + 2])
        for end in ends:
            if end.kind == "escape" and (end.text[1] in "dDsSwWB" or (len(ends) > 1 and _is_property(end))):
                raise beside_properties(pattern, end, "write the characters out, and a hyphen that is meant as \\-")
        yield "-".join(
            end.text if _is_property(end) else _rust_code(8 if end.text == "\\b" else code_of(end.text)) for end in ends
        )
        i += 2 * len(ends) - 1


def beside_properties(pattern: str, token: Token, advice: str) -> GrammarError:
    """What is said of a part that cannot stand beside Unicode classes."""
    return refused(pattern, token.text, token.at, f"this cannot be enforced beside \\p{{...}}; {advice}")


def _rust_code(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"


def code_of(text: str) -> int:
    """The code point of a character or an escape of one."""
    if len(text) == 1:
        return ord(text)
    kind, rest = text[1], text[2:]
    if kind == "u" and rest.startswith("{"):
        return int(rest[1:-1], 16)
    if kind == "u" and "\\" in rest:
        high, low = int(rest[:4], 16), int(rest[6:], 16)
        return 0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF)
    if kind in "ux" and rest:
        return int(rest, 16)
    if kind == "c" and rest:
        return ord(rest) % 32
    return _NAMED_CODES.get(kind, ord(kind))
