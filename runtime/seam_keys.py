"""The radix cache's keys of tokens whose KV is not that of plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lmnb.runtime.prefix_cache import Tokens
from lmnb.runtime.prompt_layout import PromptLayout, Range, Section

_FIRST_KEY = -2  # -1 is a token on its way
_MOST_UNUSED = 1024  # keys that were looked up and never cached

_What = tuple[int, tuple[Range, ...], int]  # position, what it sees, token


class SeamKeys:
    """The radix cache's keys: a token's id, but for the first of a section a negative number of its own.

    What stands before it in the tree says all that came before, so the number says the rest: where the section
    stands, what it sees, and the token. The same join has the same keys whenever it is made.
    """

    def __init__(self) -> None:
        self._keys: dict[_What, int] = {}
        self._known: dict[int, _What] = {}
        self._uses: Counter[int] = Counter()  # in the tree, by key
        self._next = _FIRST_KEY  # numbers are never used again

    def keys(self, tokens: Tokens, layout: PromptLayout) -> Tokens:
        """The keys of a prompt's leading tokens. Use them at once: what is not in the tree may later get others."""
        if not layout.sections:
            return tokens
        if len(self._keys) > _MOST_UNUSED + 2 * len(self._uses):
            self._forget([key for key in self._known if key not in self._uses])
        keys = tokens.copy()
        for section in layout.sections:
            if section.start < len(tokens):
                keys[section.start] = self._key(section, int(tokens[section.start]))
        return keys

    def tokens(self, keys: Tokens) -> tuple[int, ...]:
        """The token ids that keys stand for."""
        if not self._known:
            return tuple(keys.tolist())
        return tuple(key if key >= 0 else self._known[key][2] for key in keys.tolist())

    def hold(self, keys: Tokens) -> None:
        """These are in the tree from now on."""
        if self._known:
            self._uses.update(_seams(keys))

    def release(self, keys: Tokens) -> None:
        """These have left the tree, from one place of it. What stands nowhere in it is forgotten."""
        if not self._known:
            return
        for key in _seams(keys):
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key]
                self._forget([key])

    def reset(self) -> None:
        """Forget all keys; none may be in use."""
        self._keys.clear()
        self._known.clear()
        self._uses.clear()

    def check_integrity(self, nodes: Iterable[Tokens]) -> None:
        """Recount the keys in the tree, given those of each of its nodes."""
        counted = Counter(key for keys in nodes for key in _seams(keys))
        assert counted == self._uses, "the seams in the tree and those on the books differ"
        assert {key: what for what, key in self._keys.items()} == self._known, "a seam's key has no meaning"

    def _key(self, section: Section, token: int) -> int:
        what = (section.position, section.sees, token)
        key = self._keys.get(what)
        if key is None:
            key = self._keys[what] = self._next
            self._known[key] = what
            self._next -= 1
        return key

    def _forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            del self._keys[self._known.pop(key)]


def _seams(keys: Tokens) -> list[int]:
    found: list[int] = keys[keys < 0].tolist()
    return found
