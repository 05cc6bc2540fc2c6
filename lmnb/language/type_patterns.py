"""Patterns of JSON Schema for the texts that Python's types are read from. Each matches no text that its type refuses;
of the ways to write a value it may leave out uncommon ones."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

_COUNT = "[0-9]{1,5}"
_CLOCK = f"T(?:{_COUNT}H(?:{_COUNT}M)?(?:{_COUNT}S)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
DURATION = f"^P(?:{_COUNT}D(?:{_CLOCK})?|{_CLOCK})$"

WHOLE_NUMBER = "^(?:0|-?[1-9][0-9]{0,99})$"
_DECIMAL = r"(?:0|[1-9][0-9]{0,99})(?:\.[0-9]{1,99})?"
NUMBER = f"^-?{_DECIMAL}(?:[eE][+-]?[0-9]{{1,2}})?$"
COMPLEX = f"^(?:-?{_DECIMAL}(?:[+-]{_DECIMAL}j)?|-?{_DECIMAL}j)$"
STRIPPED = r"^(?:[^\s\u0085](?:[\s\S]*[^\s\u0085])?)?$"
BASE64_URL = "^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-][AQgw]==|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?$"
_DATE = (
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
NAIVE_DATETIME = rf"^{_DATE}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?$"

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def base64_of_ascii(last: str) -> str:
    """Base64 of ASCII, which any text codec reads. `last`: the last two signs, "+/" or "-_"."""
    signs = _ALPHABET + last

    def those(needed: int, zero: int = 0) -> str:
        """The signs whose value has none of the bits `needed` and `zero`."""
        return "[" + re.sub("([-/])", r"\\\1", "".join(signs[i] for i in range(64) if not i & (needed | zero))) + "]"

    first, second, third, fourth = those(0b100000), those(0b001000), those(0b000010), those(0)
    ends = f"{first}{those(0b001000, 0b000111)}==|{first}{second}{those(0b000010, 0b000001)}="
    return f"^(?:{first}{second}{third}{fourth})*(?:{ends})?$"


def uuid(version: int | str) -> str:
    """A UUID of that version, a digit."""
    digit = "[0-9a-fA-F]"
    return f"^{digit}{{8}}-{digit}{{4}}-{version}{digit}{{3}}-[89abAB]{digit}{{3}}-{digit}{{12}}$"


_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = f"(?:{_GROUP}(?::{_GROUP}){{7}}|(?:{_GROUP}(?::{_GROUP}){{0,5}})?::(?:{_GROUP})?)"


def _ipv4_network() -> str:
    """An address whose bits behind the prefix are zero."""
    forms = [_IPV4]
    for length in range(33):
        whole, bits = divmod(length, 8)
        octets = [_OCTET] * whole
        if bits:
            octets.append(f"(?:{'|'.join(str(value) for value in range(0, 256, 256 >> bits))})")
        octets += ["0"] * (4 - len(octets))
        forms.append(r"\.".join(octets) + f"/{length}")
    return "|".join(forms)


def _ipv6_network() -> str:
    """An address, or whole groups of one and their length."""
    return "|".join([_IPV6, "::/0", *(f"{_GROUP}(?::{_GROUP}){{{n - 1}}}::/{16 * n}" for n in range(1, 7))])


_IPV4_INTERFACE = f"{_IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?"
_IPV6_INTERFACE = f"{_IPV6}(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"

_WORD = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_DOMAINS = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9]{0,20}|-[a-zA-Z0-9]{1,20})\.){1,8}"
_EMAIL = rf"^{_WORD}(?:\.{_WORD}){{0,2}}@{_DOMAINS}[a-zA-Z]{{2,20}}$"

# By pydantic's names of formats that are no one else's.
FORMATS = {
    "base64url": BASE64_URL,
    "ipv4network": f"^(?:{_ipv4_network()})$",
    "ipv6network": f"^(?:{_ipv6_network()})$",
    "ipv4interface": f"^{_IPV4_INTERFACE}$",
    "ipv6interface": f"^{_IPV6_INTERFACE}$",
    "ipvanyaddress": f"^(?:{_IPV4}|{_IPV6})$",
    "ipvanyinterface": f"^(?:{_IPV4_INTERFACE}|{_IPV6_INTERFACE})$",
    "ipvanynetwork": f"^(?:{_ipv4_network()}|{_ipv6_network()})$",
    **{f"uuid{version}": uuid(version) for version in range(1, 9)},
    "email": _EMAIL,
}
KEY_FORMATS = {**FORMATS, "uuid": uuid("[0-9a-fA-F]")}  # that must be patterns in names

_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9]{0,20}|[a-zA-Z0-9][a-zA-Z0-9]-[a-zA-Z0-9]{1,20}|-[a-zA-Z0-9]{1,20})"
_HOST = rf"(?:(?:{_LABEL}\.){{0,8}}[a-zA-Z]{{2,20}}|{_IPV4})"
_PORT = "(?::(?:[0-9]{1,4}|[1-5][0-9]{4}))"
_PATH = r"(?:/[a-zA-Z0-9._~!$&'()*+,;=:@%/-]*)"
_REST = r"(?:\?[a-zA-Z0-9._~!$&'()*+,;=:@%/?-]*)?(?:#[a-zA-Z0-9._~!$&'()*+,;=:@%/?-]*)?"
_USER = r"(?:[a-zA-Z0-9._~-]{1,60}(?::[a-zA-Z0-9._~-]{1,60})?@)"


def url(schemes: Iterable[str] | None, *, several: bool) -> str:
    """An address with a host (a file has none) of one of `schemes` (None: any), or with several hosts."""
    names = list(schemes or ("http", "https", "ftp", "ws", "wss", "file"))
    hosts = f"{_HOST}{_PORT}?" + (f"(?:,{_HOST}{_PORT}?){{0,8}}" if several else "")
    heads = [re.escape(name) for name in names if name != "file"] + ([] if schemes else ["[a-z][a-z0-9+.-]{1,20}"])
    forms = [f"(?:{'|'.join(heads)})://{_USER}?{hosts}{_PATH}?{_REST}"] if heads else []
    forms += [f"file://{_PATH}"] if "file" in names else []
    return f"^(?:{'|'.join(forms)})$"


def ascii_text(low: int, high: int | None) -> str:
    """So many characters of one byte."""
    return rf"^[\x00-\x7f]{{{low},{'' if high is None else high}}}$"


def hexadecimal(low: int, high: int | None) -> str:
    """So many bytes, two digits each."""
    return f"^(?:[0-9a-f]{{2}}){{{low},{'' if high is None else high}}}$"


_PART = re.compile(
    r"""\\(?:[xuU]\{[0-9a-fA-F]+\} | U[0-9a-fA-F]{8} | [pP][a-zA-Z] | [\s\S]) | \(\?P?<[^=!>][^>]*> | \{,[0-9]*\}
    | \{\s*[0-9]+\s*(?:,\s*(?:[0-9]+\s*)?)?\} | [\s\S]""",
    re.VERBOSE,
)
_LEADING_FLAGS = re.compile(r"(?:\(\?[a-zA-Z]+\))+")
_SURE_SPACES = r" \t\n\v\f\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # in every dialect


def searched(pattern: str, *, rust: bool) -> str:
    """A regex of Rust's or Python's, as pydantic searches with it, in the dialect of JSON Schema's patterns, where
    classes are of ASCII: what is in none of them here is in none of them there. TypeError for Rust's operations on
    classes."""
    flags = _LEADING_FLAGS.match(pattern)
    if flags is not None:
        letters = "".join(sorted(set(re.findall(r"\w", flags[0])) - {"u"}))
        rest = searched(pattern[flags.end() :], rust=rust)
        return f"(?{letters}:{rest})" if letters else rest
    # What leads a class means itself: a bracket, and in Rust hyphens.
    head = re.compile(r"\[\^?(?:\](?:-(?!-))?|-*)" if rust else r"\[\^?\]?")
    out = []
    negated: bool | None = None  # of the class it stands in; None: in none
    i = 0
    while i < len(pattern):
        found = (head if negated is None and pattern[i] == "[" else _PART).match(pattern, i)
        assert found is not None  # the last alternative takes any character
        text = found[0]
        if negated is None and text[0] == "[":
            negated = text.startswith("[^")
            out.append(re.sub(r"([\]-])", r"\\\1", text))
        elif negated is not None and text[0] != "\\":
            text = pattern[i]
            if rust and (text == "[" or pattern[i : i + 2] in ("&&", "--", "~~")):
                what = "[" if text == "[" else text * 2
                raise TypeError(
                    f"the pattern {pattern[:60]!r} has {what!r} within a class (position {i}), where Rust, which reads "
                    "it for pydantic, has operations on classes; write the characters out, or as \\["
                )
            negated = None if text == "]" else negated
            out.append(text)
        else:
            if rust and text in ("\\<", "\\>"):
                raise TypeError(f"the pattern {pattern[:60]!r} has {text!r} (position {i}), which Rust takes for the "
                                "edge of a word; that cannot be enforced")  # fmt: skip
            out.append(_plain_part(text, negated, rust=rust))
        i += len(text)
    return "".join(out)


def _plain_part(text: str, negated: bool | None, *, rust: bool) -> str:
    """An escape, or what stands in no class, in ECMA 262's words."""
    kind = text[1:2]
    if text[0] == "\\":
        if kind in "DWS" and not negated:
            ranges = _classes(kind.lower())[1]
            return f"[{ranges}]" if negated is None else ranges
        if kind in "dws" and negated:
            return f"\\{kind}{_classes(kind)[0]}"
        if kind == "S":  # of a class of what is not meant
            return "\\S\\ufeff"
        if kind == "s":
            return f"[{_SURE_SPACES}]" if negated is None else _SURE_SPACES
        if kind in "AzZ" and negated is None:
            return "^" if kind == "A" else "$"
        if kind in "xuU" and len(text) > 2:
            return f"\\u{{{text[2:].strip('{}')}}}"
        if kind in "pP" and len(text) == 3:
            return f"\\{kind}{{{text[2]}}}"
        return "\\x07" if kind == "a" else text
    if text.startswith("(?"):
        return "("
    if text.startswith("{,"):
        return "{0" + text[1:]
    return re.sub(r"\s", "", text) if rust and text[0] == "{" else text


_SPACES = frozenset(code for code in range(0x3001) if chr(code).isspace()) | {0x85, 0xFEFF}
_NEVER = ("Cn", "Cs")  # what has no meaning yet, and halves of characters
_ALPHABETIC = {0x200C, 0x200D, *range(0x24B6, 0x24EA), *range(0x1F130, 0x1F18A)}  # of other categories than letters


@lru_cache(maxsize=3)
def _classes(kind: str) -> tuple[str, str]:
    """What `\\d`, `\\w` or `\\s` may match beyond ASCII, and what it certainly does not: ranges of a class."""
    inside, outside = [], []
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if kind == "s":
            found = code in _SPACES
        else:
            found = category == "Nd" or (
                kind == "w" and (category[0] in "LMN" or category == "Pc" or code in _ALPHABETIC)
            )
        if (found or category == "Cn") and (code > 0x7F or kind == "s"):
            inside.append(code)
        if not found and category not in _NEVER:
            outside.append(code)
    return _ranges(inside), _ranges(outside)


def _ranges(codes: Iterable[int]) -> str:
    """Of a class: the code points, which are in order, as ranges."""
    found: list[list[int]] = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in found)


def _code(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else chr(code)
