"""What a prefix cache must do: find, keep and give up the KV slots of token prefixes.

Two implementations: `RadixCache`, and `NaiveCache`, which is slow, obvious, and checks the other in tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmnb.runtime.kv_pool import Slots

Tokens = NDArray[np.int32]
NodeT = TypeVar("NodeT")


class Match(NamedTuple, Generic[NodeT]):
    """A locked prefix: `slots` hold its tokens' KV; `node` must be released later."""

    node: NodeT
    slots: Slots


class Insertion(NamedTuple, Generic[NodeT]):
    """Where an inserted prefix ends, and how much of it had been there before."""

    node: NodeT  # ends the whole prefix; not locked for the caller yet
    num_existing: int
    existing_slots: Slots  # the cache's own slots for tokens [start, num_existing)


class PrefixCache(ABC, Generic[NodeT]):
    """Owns the slots that were inserted, until `evict` or `reset` returns them."""

    @abstractmethod
    def peek(self, tokens: Tokens) -> int:
        """How many leading tokens are cached. Changes nothing."""

    @abstractmethod
    def acquire(self, tokens: Tokens) -> Match[NodeT]:
        """Find the longest cached prefix and lock it."""

    @abstractmethod
    def insert(
        self, tokens: Tokens, slots: Slots, *, start: int = 0, tail: NodeT | None = None, owner: object = None
    ) -> Insertion[NodeT]:
        """Cache all of `tokens`. Slots of what was not there yet become the cache's; the caller keeps (and must
        free) its slots of [start, num_existing). `tail`, a leaf the caller made itself, may grow in place."""

    @abstractmethod
    def lock(self, node: NodeT) -> None:
        """Keep the path to `node` from being evicted, until as many `release`s."""

    @abstractmethod
    def release(self, node: NodeT) -> None: ...

    @abstractmethod
    def pin(self, node: NodeT) -> None:
        """Lock the path to `node` until `unpin`, whatever requests do. A pinned leaf grows no more. Twice is once."""

    @abstractmethod
    def unpin(self, node: NodeT) -> None:
        """Take a pin back. No-op without one."""

    @abstractmethod
    def evict(self, num_tokens: int, *, beneficiary: object = None) -> Slots:
        """Give up unlocked leaves, least recently used first, until `num_tokens` tokens are gone or nothing
        is left to give. Returns their slots (possibly more, possibly fewer). `beneficiary`: who needs them."""

    @abstractmethod
    def discard(self, node: NodeT) -> Slots:
        """Give up `node` and everything below it; nothing of that may be locked. Returns the slots."""

    @abstractmethod
    def reset(self) -> Slots:
        """Forget everything that no pin keeps; no other lock may be held. Returns the slots."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens in the cache."""

    @property
    @abstractmethod
    def num_evictable(self) -> int:
        """Tokens of it that no lock holds."""

    @property
    @abstractmethod
    def num_pinned(self) -> int:
        """Tokens of it that pins keep."""

    @abstractmethod
    def check_integrity(self) -> Slots:
        """Recount everything against the bookkeeping; returns all slots owned."""


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Number of leading tokens that agree."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n
