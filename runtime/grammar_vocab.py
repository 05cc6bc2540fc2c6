"""What a constraint engine may know of a vocabulary, and the end tokens it must not care about.

Added tokens (role markers and the like), end tokens and the padding of a model's vocabulary are blank: no
constraint can be matched with them. The end of a match is one virtual token past all others; the matchers here
translate it to and from the tokenizer's own end tokens, so the libraries need not agree on how they treat those.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

import numpy as np

from lmnb.runtime.tokenizer import Tokenizer

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")


class Scratch:
    """Room for a library's mask: int32 [1, words], one bit a token and one for the virtual end."""

    def __init__(self, num_words: int) -> None:
        self.mask = np.zeros((1, num_words), dtype=np.int32)
        self.address, self.num_bytes = self.mask.ctypes.data, self.mask.nbytes


class GrammarVocabulary:
    """Bytes of each of `vocab_size` tokens (the model's number, not the tokenizer's), and the end tokens' bits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        blank = tokenizer.added_ids | tokenizer.special_ids | tokenizer.eos_ids
        known = min(vocab_size, tokenizer.vocab_size)
        self.tokens = [b"" if i in blank else tokenizer.token_bytes(i) for i in range(known)]
        # A surrogate encoded as if it were a character (ED A0 to ED BF) is no UTF-8, though xgrammar lets it pass.
        self.tokens = [b"" if _SURROGATE.search(token) else token for token in self.tokens]
        self.tokens += [b""] * (vocab_size - known)
        self.size = vocab_size
        self.end_id = vocab_size  # the virtual end token
        self.eos_ids = frozenset(i for i in tokenizer.eos_ids if i < vocab_size)
        self.num_words = -(-vocab_size // 32)
        self.num_words_with_end = -(-(vocab_size + 1) // 32)
        self._scratch = threading.local()
        self._eos_bits = self._bits_of(self.eos_ids)
        self._high_bits = self._bits_of(i for i, token in enumerate(self.tokens) if b"\xa0" <= token[:1] <= b"\xbf")
        written = [i for i, token in enumerate(self.tokens) if token]
        self._in_order = np.array(
            sorted(written, key=lambda i: (self.tokens[i][0], len(self.tokens[i]))), dtype=np.int64
        )
        self._first = np.array([self.tokens[i][0] for i in written], dtype=np.uint8)
        self._real_bits = np.full(self.num_words, 0xFFFFFFFF, dtype=np.uint32)
        if vocab_size % 32:
            self._real_bits[-1] = (1 << vocab_size % 32) - 1

    def _bits_of(self, token_ids: Iterable[int]) -> np.ndarray:
        words = np.zeros(self.num_words, dtype=np.uint32)
        for token_id in token_ids:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        return words

    def opens_surrogate(self, token_id: int) -> bool:
        """Whether the token ends with byte ED, so that the next byte decides between a character and a surrogate."""
        return self.tokens[token_id].endswith(b"\xed")

    def forbid_surrogates(self, mask: np.ndarray) -> None:
        """Take the tokens that would complete a surrogate after byte ED out of the library's `mask`."""
        words = mask.reshape(-1).view(np.uint32)[: self.num_words]
        np.bitwise_and(words, ~self._high_bits, out=words)

    def beginnings(self, bitmask: np.ndarray) -> list[int]:
        """Of the tokens in `bitmask` (int32 [num_words]), the shortest that begins with each byte: what a grammar makes
        of them does not depend on the vocabulary."""
        allowed = np.unpackbits(bitmask.view(np.uint8), bitorder="little")[self._in_order] == 1
        places = np.unique(self._first[allowed], return_index=True)[1]
        return [int(token_id) for token_id in self._in_order[allowed][places]]

    @property
    def scratch(self) -> Scratch:
        """The calling thread's room for a library's mask."""
        found: Scratch | None = getattr(self._scratch, "mask", None)
        if found is None:
            found = self._scratch.mask = Scratch(self.num_words_with_end)
        return found

    def copy_mask(self, mask: np.ndarray, out: np.ndarray, *, may_end: bool = True) -> bool:
        """Write the library's `mask` to `out` (int32 [num_words]) with the real end tokens; False if no bit is set.
        `may_end`: whether a virtual end in it counts."""
        words = mask.reshape(-1).view(np.uint32)
        target = out.view(np.uint32)
        np.bitwise_and(words[: self.num_words], self._real_bits, out=target)
        if may_end and int(words[self.end_id // 32]) >> (self.end_id % 32) & 1:
            np.bitwise_or(target, self._eos_bits, out=target)
        return bool(np.count_nonzero(target))

    def only_end(self, mask: np.ndarray) -> bool:
        """Whether the virtual end is the one bit set in the library's `mask`."""
        words = mask.reshape(-1).view(np.uint32)
        word, bit = divmod(self.end_id, 32)
        return int(words[word]) == 1 << bit and np.count_nonzero(words) == 1
