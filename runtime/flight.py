"""A step on its way."""

from __future__ import annotations

from typing import NamedTuple

from lmnb.runtime.batch_builder import BuiltBatch
from lmnb.runtime.sampler import PendingTokens


class Flight(NamedTuple):
    """A step that was launched and whose tokens have not been read."""

    built: BuiltBatch
    tokens: PendingTokens | None

    @property
    def is_over(self) -> bool:
        """Whether the device is done with it."""
        return self.tokens is None or self.tokens.is_ready

    @property
    def must_land(self) -> bool:
        """Whether the next step of these requests cannot be made before their tokens are known here."""
        return any(row.sequence.matcher is not None or row.sequence.draw.needs_last_token for row in self.built.sampled)
