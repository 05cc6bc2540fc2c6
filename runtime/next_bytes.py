"""Which bytes a grammar lets come next. Knows matchers and vocabularies, no requests."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.tokenizer import Tokenizer

_NUM_KEPT = 256  # sets of bytes that are remembered, and shared


class Behind(NamedTuple):
    """What a grammar lets come next."""

    first: frozenset[int]  # the first byte of all of it; none if only the end may come
    mask: np.ndarray  # the tokens, as of `GrammarMatcher.fill`


class NextBytes:
    """For one vocabulary. `vocab_size`: the width of the model's logits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        silent = tokenizer.added_ids | tokenizer.special_ids | tokenizer.eos_ids
        self._num_words = -(-vocab_size // 32)
        single: set[int] = set()  # the bytes that have a token of their own
        written: list[tuple[int, bytes]] = []
        inner: set[int] = set()
        for token_id in range(min(vocab_size, tokenizer.vocab_size)):
            data = b"" if token_id in silent else tokenizer.token_bytes(token_id)
            if data:
                written.append((token_id, data))
            if len(data) == 1:
                single.add(data[0])
            inner.update(data[1:])
        # A byte may come next where a token of it alone may; where there is none, one that begins with it.
        telling = [(i, data[0]) for i, data in written if len(data) == 1 or data[0] not in single]
        ids = np.array([token_id for token_id, _ in telling], dtype=np.int64)
        self._words, where = np.unique(ids // 32, return_inverse=True)  # of a mask: those that tell of any byte
        self._bits = 32 * where + ids % 32  # of those words
        self._bytes = np.array([byte for _, byte in telling], dtype=np.uint8)
        # No mask shows that such a byte may come next: it is only written by a token that begins before it.
        self._hidden = frozenset(inner - single)
        self._recall_set = lru_cache(_NUM_KEPT)(self._set_of)

    def behind(self, matcher: GrammarMatcher) -> Behind | None:
        """What may come behind what `matcher` has accepted; None if nothing may, not even the end."""
        mask = np.zeros(self._num_words, dtype=np.int32)
        if not matcher.fill(mask):
            return None
        return Behind(self._recall_set(mask[self._words].tobytes()), mask)

    def _set_of(self, words: bytes) -> frozenset[int]:
        """What may come where a mask has these `words`. Most are the same, and each set takes kilobytes."""
        bits = np.unpackbits(np.frombuffer(words, dtype=np.uint8), bitorder="little")
        return frozenset(self._bytes[bits[self._bits] == 1].tolist()) | self._hidden
