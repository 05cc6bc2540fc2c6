"""The radix cache's keys of tokens whose KV is not that of plain text."""

from __future__ import annotations

from lmnb.runtime.prefix_cache import Tokens
from lmnb.runtime.prompt_layout import PromptLayout, Range, Section

_FIRST_KEY = -2  # -1 is a token on its way


class SeamKeys:
    """The radix cache's keys: a token's id, but for the first of a section a negative number of its own.

    What stands before it in the tree says all that came before, so the number says the rest: where the section
    stands, what it sees, and the token. The same join has the same keys whenever it is made.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[int, tuple[Range, ...], int], int] = {}
        self._tokens: list[int] = []

    def keys(self, tokens: Tokens, layout: PromptLayout) -> Tokens:
        """The keys of a prompt's leading tokens."""
        if not layout.sections:
            return tokens
        keys = tokens.copy()
        for section in layout.sections:
            if section.start < len(tokens):
                keys[section.start] = self._key(section, int(tokens[section.start]))
        return keys

    def tokens(self, keys: Tokens) -> tuple[int, ...]:
        """The token ids that keys stand for."""
        if not self._tokens:
            return tuple(keys.tolist())
        return tuple(key if key >= 0 else self._tokens[_FIRST_KEY - key] for key in keys.tolist())

    def reset(self) -> None:
        """Forget all keys; none may be in use."""
        self._keys.clear()
        self._tokens.clear()

    def _key(self, section: Section, token: int) -> int:
        what = (section.position, section.sees, token)
        key = self._keys.get(what)
        if key is None:
            key = self._keys[what] = _FIRST_KEY - len(self._tokens)
            self._tokens.append(token)
        return key
