"""Regexes, in Rust's dialect and for the whole text, of the identifiers of RFC 3986, 3987 and 6570."""

from __future__ import annotations

from lmnb.runtime.ip_patterns import IPV4, IPV6

_HEX = "[0-9a-fA-F]"
_CODED = f"%{_HEX}{{2}}"
_SUB = "!$&'()*+,;="
_PLAIN = "A-Za-z0-9._~-"
_BEYOND = "".join(  # what only IRIs have
    f"\\x{{{low:X}}}-\\x{{{high:X}}}"
    for low, high in (
        *((0xA0, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF), (0xE1000, 0xEFFFD)),
        *((plane << 16, (plane << 16) + 0xFFFD) for plane in range(1, 14)),
    )
)
_PRIVATE = r"\x{E000}-\x{F8FF}\x{F0000}-\x{FFFFD}\x{100000}-\x{10FFFD}"  # in queries of IRIs


def _references(more: str, private: str) -> tuple[str, str]:
    """A whole identifier, and a reference, which may be relative. `more`: further characters; `private`: in queries."""

    def of(characters: str) -> str:
        return f"(?:[{characters}{more}{_PLAIN}]|{_CODED})"

    segment, first = of(f"{_SUB}:@"), of(f"{_SUB}@")
    rest = f"(?:/{segment}*)*"
    host = rf"(?:\[{IPV6}\]|\[[vV]{_HEX}+\.[{_SUB}:{_PLAIN}]+\]|{IPV4}|{of(_SUB)}*)"
    authority = f"//(?:{of(f'{_SUB}:')}*@)?{host}(?::[0-9]*)?{rest}"
    absolute = f"/(?:{segment}+{rest})?"
    tail = rf"(?:\?{of(f'{_SUB}:@/?{private}')}*)?(?:#{of(f'{_SUB}:@/?')}*)?"
    whole = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{absolute}|{segment}+{rest}|){tail}"
    relative = f"(?:{authority}|{absolute}|{first}+{rest}|){tail}"
    return whole, f"(?:{whole}|{relative})"


def _template() -> str:
    letter = f"(?:[A-Za-z0-9_]|{_CODED})"
    name = rf"{letter}(?:\.?{letter})*(?::[1-9][0-9]{{0,3}}|\*)?"
    literal = rf"(?:[!#$&'(-;=?-\[\]_a-z~{_BEYOND}{_PRIVATE}]|{_CODED})"
    return rf"(?:{literal}|\{{[+#./;?&=,!@|]?{name}(?:,{name})*\}})*"


URI_REFERENCE = _references("", "")[1]
IRI, IRI_REFERENCE = _references(_BEYOND, _PRIVATE)
URI_TEMPLATE = _template()
