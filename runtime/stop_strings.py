"""Stop strings and regexes, found in text that arrives in pieces. Knows nothing of tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lmnb.runtime.stop_regex import StopRegex


class StopStrings:
    """Finds the first of several strings in text that arrives in pieces (Aho and Corasick, 1975).

    The match that is complete first wins; of those complete at one character, the one that began first. So the
    result does not depend on how the text was cut into pieces.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]  # longest stop string that ends in this state
        for string in strings:
            self._insert(string)
        self._fail = [0] * len(self._next)
        self._link_failures()
        self._state = 0

    def _insert(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = self._next[state][char]
        self._match[state] = string

    def _link_failures(self) -> None:
        queue = deque(self._next[0].values())
        while queue:  # breadth first: a state's failure link points to a shorter one, already linked
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], char)
                if self._match[child] is None:
                    self._match[child] = self._match[self._fail[child]]
                queue.append(child)

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    @property
    def held(self) -> int:
        """How many of the last characters may be the start of a stop string."""
        return self._depth[self._state]

    def feed(self, text: str) -> tuple[int, str] | None:
        """Go on with `text`. The match, if one is complete: how many characters of `text` it took, and the string."""
        for i, char in enumerate(text):
            self._state = self._step(self._state, char)
            match = self._match[self._state]
            if match is not None:
                return i + 1, match
        return None


class Stops:
    """Stop strings and stop regexes together: of all matches the one that is complete first, then the one that began
    first."""

    def __init__(self, strings: Sequence[str], regexes: Sequence[str]) -> None:
        self._strings = StopStrings(strings)
        self._regexes = [StopRegex(pattern) for pattern in regexes]

    @property
    def held(self) -> int:
        """How many of the last characters may be the start of a match."""
        return max([self._strings.held, *(regex.held for regex in self._regexes)])

    def feed(self, text: str) -> tuple[int, int, str] | None:
        """Go on with `text`. The match, if any: characters of `text` taken, its length, and which stop it was."""
        string = self._strings.feed(text)
        found = [] if string is None else [(string[0], len(string[1]), string[1])]
        matches = [(regex.feed(text), regex.pattern) for regex in self._regexes]
        found += [(*match, pattern) for match, pattern in matches if match is not None]
        return min(found, key=lambda match: (match[0], -match[1]), default=None)

    def end(self) -> tuple[int, int, str] | None:
        """The text has ended: a match that this completes, told as `feed` tells it."""
        found = [(length, regex.pattern) for regex in self._regexes if (length := regex.end()) is not None]
        return max(((0, length, pattern) for length, pattern in found), key=lambda match: match[1], default=None)
