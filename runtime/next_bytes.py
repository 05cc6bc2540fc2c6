"""Which bytes a grammar lets come behind text that it forces. Knows matchers and vocabularies, no requests."""

from __future__ import annotations

import numpy as np

from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.tokenizer import Tokenizer


class NextBytes:
    """For one vocabulary. `vocab_size`: the width of the model's logits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        silent = tokenizer.added_ids | tokenizer.special_ids | tokenizer.eos_ids
        self._num_words = -(-vocab_size // 32)
        self._first = np.full(32 * self._num_words, -1, dtype=np.int16)  # byte of each token; -1: it has none
        self._single: dict[int, int] = {}  # the token of each byte that has one
        inner: set[int] = set()
        for token_id in range(min(vocab_size, tokenizer.vocab_size)):
            data = b"" if token_id in silent else tokenizer.token_bytes(token_id)
            if data:
                self._first[token_id] = data[0]
            if len(data) == 1:
                self._single.setdefault(data[0], token_id)
            inner.update(data[1:])
        # No mask shows that such a byte may come next: it is only written by a token that begins before it.
        self._hidden = frozenset(inner - self._single.keys())

    def after(self, matcher: GrammarMatcher, text: bytes) -> frozenset[int] | None:
        """The first bytes of all that may follow `text`, which must be allowed next; none if only the end may. None
        if it cannot be said, for want of tokens to walk through `text` byte by byte."""
        copy = matcher.fork()
        mask = np.zeros(self._num_words, dtype=np.int32)
        if not all(copy.accept(self._single.get(byte, -1)) for byte in text) or not copy.fill(mask):
            return None
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little").view(np.bool_)
        found = np.zeros(257, dtype=np.bool_)  # the last for tokens without bytes
        found[self._first[allowed]] = True
        return frozenset(np.flatnonzero(found[:256]).tolist()) | self._hidden
