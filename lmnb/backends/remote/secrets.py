"""Keys and what is shown: no key, and no password in a URL, appears in a repr, an error or a trace."""

from __future__ import annotations

import os
from urllib.parse import urlsplit, urlunsplit

from lmnb.errors import ArgumentError, PicklingError


class Secret:
    """A key. Its text is had by `reveal` only; printing and pickling do not show it."""

    __slots__ = ("_value",)

    def __init__(self, value: str | None) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Secret(***)" if self._value else "Secret(none)"

    def __reduce__(self) -> str:
        raise PicklingError(
            "a key is not pickled: make the backend again where it is needed, with its key in the environment"
        )

    def __bool__(self) -> bool:
        return bool(self._value)

    def reveal(self) -> str | None:
        """The key itself, for a request's header."""
        return self._value

    def hide(self, text: str) -> str:
        """`text` without the key, should a server have repeated it."""
        return text.replace(self._value, "***") if self._value else text


def key_from_environment(name: str, what: str) -> Secret:
    """The key in the environment variable `name`. ArgumentError if it is not set."""
    value = os.environ.get(name)
    if not value:
        raise ArgumentError(f"{what} needs a key: set the environment variable {name} before starting Python")
    return Secret(value)


def refuse_key(options: dict[str, object], variable: str) -> None:
    """ArgumentError for a key among options: it would stand in the notebook."""
    for name in options:
        if "key" in name or "token" in name:
            raise ArgumentError(
                f"keys are not passed as {name}=...: they would be saved with the notebook; "
                f"set the environment variable {variable}"
            )


def shown_url(url: str) -> str:
    """`url` without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
