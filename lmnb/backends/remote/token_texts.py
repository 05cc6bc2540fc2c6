"""What tokens of a remote model read like, as far as its answers have told. Thread-safe."""

from __future__ import annotations

import threading

from lmnb.backends.well_formed import well_formed


class TokenTexts:
    """Texts by token id. Some APIs tell a token's text and no id: such tokens get numbers below zero, which are
    lmnb's own and mean nothing to the server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[int, str] = {}
        self._own: dict[str, int] = {}

    def learn(self, token_id: int, text: str) -> None:
        """A server told a token's text."""
        self._texts[token_id] = well_formed(text)

    def number(self, text: str) -> int:
        """The number of a token that has only a text."""
        text = well_formed(text)
        with self._lock:
            number = self._own.setdefault(text, -1 - len(self._own))
        self._texts[number] = text
        return number

    def text(self, token_id: int) -> str:
        """The token's text; its number in brackets if no answer has told it."""
        return self._texts.get(token_id, f"<{token_id}>")
