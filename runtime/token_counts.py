"""How often a request has generated each token, in arrays that are ready to be handed to a device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Tokens in the order in which they first came, and their counts."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._tokens = np.empty(16, dtype=np.int32)
        self._counts = np.empty(16, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.tokens.tolist(), self.counts.tolist(), strict=True)

    @property
    def tokens(self) -> NDArray[np.int32]:
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.int32]:
        return self._counts[: len(self._places)]

    def add(self, token_id: int) -> None:
        """One more."""
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = len(self._places)
            if place == len(self._tokens):
                self._tokens = np.concatenate((self._tokens, np.empty_like(self._tokens)))
                self._counts = np.concatenate((self._counts, np.empty_like(self._counts)))
            self._tokens[place], self._counts[place] = token_id, 0
        self._counts[place] += 1

    def remove(self, token_id: int) -> None:
        """One less of a token that was added."""
        place = self._places[token_id]
        self._counts[place] -= 1
        if not self._counts[place]:  # the last one takes its place
            last = len(self._places) - 1
            self._tokens[place], self._counts[place] = self._tokens[last], self._counts[last]
            self._places[int(self._tokens[place])] = place
            del self._places[token_id]
