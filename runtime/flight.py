"""A step on its way."""

from __future__ import annotations

from typing import NamedTuple

from lmnb.runtime.batch_builder import BuiltBatch
from lmnb.runtime.known_scores import PendingScores
from lmnb.runtime.pending_tokens import PendingTokens


class Flight(NamedTuple):
    """A step that was launched and whose tokens have not been read."""

    built: BuiltBatch
    tokens: PendingTokens | None
    scores: PendingScores

    @property
    def is_over(self) -> bool:
        """Whether the device is done with it."""
        return self.tokens is None or self.tokens.is_ready
