"""The address of a server, as a program gives it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from lmnb.backends.remote.secrets import shown_url
from lmnb.errors import ArgumentError


def checked_url(url: Any, who: str) -> str:
    """`url` itself. ArgumentError if it is not that of an HTTP server."""
    if not isinstance(url, str):
        raise ArgumentError(f"{who} needs the server's address as text, such as 'http://127.0.0.1:30000', not {url!r}")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half of an IPv6 address
        good = False
    if good:
        return url
    try:
        told = shown_url(url)
    except ValueError:
        told = "that"
    raise ArgumentError(f"{who} needs an address such as 'http://127.0.0.1:30000', and {told!r} is none")
