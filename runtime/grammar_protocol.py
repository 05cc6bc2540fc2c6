"""What a constraint engine must do for the sampler. One matcher follows one request's text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import numpy as np

from lmnb.runtime.request import Constraint


class GrammarMatcher(Protocol):
    """Follows one generation, token by token."""

    engine: str  # "llguidance" or "xgrammar", shown in views

    def fill(self, bitmask: np.ndarray) -> bool:
        """Write the allowed next tokens into `bitmask` (int32 [ceil(vocab / 32)], bit i of word j = token
        32 j + i; end tokens are allowed exactly where the match may end). False: no token may follow, because the
        match has ended, is at a dead end, or has outgrown the library's limits."""
        ...

    def is_beyond_limits(self) -> bool:
        """Whether the last mask is empty, or the last token was not taken, because the library gave up, not because
        nothing, or not this, may come next. Also of a matcher that was not asked for anything: whether it could not
        follow any text, for what its forks have met."""
        ...

    def recover(self) -> bool:
        """Beyond the limits, begin anew with nothing that others have a share in, and follow the same tokens; False if
        that is beyond the limits too. Takes as long as compiling."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False, and nothing changes, if the grammar does not allow it."""
        ...

    def follow(self, token_ids: Collection[int]) -> bool:
        """Advance by several tokens, none of which is an end token; False if one of them is not allowed: it has
        advanced by some of those before it then. Where the library gives up, it takes them as they are: nothing is
        done, forced or allowed from there on until it has recovered."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens, an end token included."""
        ...

    def fork(self) -> GrammarMatcher:
        """An independent matcher in the same state."""
        ...

    def forced(self) -> bytes:
        """The bytes that must come next whatever is chosen: empty where there is a choice, the end being one. They
        may begin or end within a character. GrammarError if there are too many."""
        ...

    def is_done(self) -> bool:
        """Nothing but an end token can follow."""
        ...


class GrammarCompiler(Protocol):
    """Compiles constraints for one tokenizer. Thread-safe: the engine compiles off its own loop."""

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        """A fresh matcher; compiled forms are cached. Raises GrammarError."""
        ...

    def known(self, constraint: Constraint) -> GrammarMatcher | None:
        """A fresh matcher at once, if the compiled form is cached."""
        ...

    def close(self) -> None:
        """End what was started for it beside this process's threads. It may be used again."""
        ...
