"""Regexes, in Rust's dialect and for the whole text, of IP addresses: RFC 4291 and what it rests on."""

from __future__ import annotations

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = "[0-9a-fA-F]{1,4}"


def _ipv6() -> str:
    tail = f"(?:{_HEX}:{_HEX}|{IPV4})"  # the last 32 bits
    forms = [f"(?:{_HEX}:){{6}}{tail}"]
    # `::` stands for what is missing: n groups before it at most, and m behind it.
    for behind in range(6, -1, -1):
        after = f"(?:{_HEX}:){{{behind - 2}}}{tail}" if behind >= 2 else _HEX if behind else ""
        most = 7 - behind
        before = f"(?:(?:{_HEX}:){{0,{most - 1}}}{_HEX})?" if most else ""
        forms.append(f"{before}::{after}")
    return "(?:" + "|".join(forms) + ")"


IPV6 = _ipv6()
