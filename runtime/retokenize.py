"""Tokenizes text that continues other text, and says which of its tokens stay the same whatever follows.

Knows tokenizers only: no grammars, no requests. Everything is exact for byte-pair encodings, whose tokens up to a
token boundary are those of the text up to there; what pre-tokenizers add to that is listed in `_loose_start`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from lmnb.runtime.tokenizer import Tokenizer

_MAX_WINDOW = 1024  # tokens that are tokenized again at most
_NUM_KEPT, _LONGEST_KEPT = 64, 1024  # texts that are remembered, and characters of each
_PUNCTUATION = frozenset(b'!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~')  # without the apostrophe, which opens contractions
_CONTRACTION = 3  # characters of the longest one, 'll, apostrophe included


class Retokenizer:
    """Threads may share it: it never changes, but for remembering the last texts, since planning asks for a text more
    than once. Building it takes a fraction of a second."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int | None = None) -> None:
        """`vocab_size`: how many of the tokens the model knows, by default all; texts that need others have none."""
        self._tokenizer = tokenizer
        known = tokenizer.vocab_size if vocab_size is None else min(vocab_size, tokenizer.vocab_size)
        self._bytes = [tokenizer.token_bytes(i) for i in range(known)]
        # Data never yields an added token, but for the runs of white space that some models keep as such.
        hidden = (
            {i for i in tokenizer.added_ids if tokenizer.token_bytes(i).strip()}
            | tokenizer.special_ids
            | tokenizer.eos_ids
        )
        self._sorted = sorted({data for i, data in enumerate(self._bytes) if data and i not in hidden})
        self._longest = max(map(len, self._sorted), default=0)
        joined = _neighbours(self._sorted)
        digits = slice(ord("0"), ord("9") + 1)
        self._joins_digits = bool(joined[digits, digits].any())
        cuts = ~joined
        cuts[[not (byte < 0x80 and chr(byte).isalnum()) for byte in range(256)], :] = False
        cuts[:, [byte not in _PUNCTUATION for byte in range(256)]] = False
        # At 256 left + right: whether a token holds both; whether neither merges nor pre-tokenizers look across.
        self._joined, self._cuts = joined.tobytes(), cuts.tobytes()
        # Tokenizers of the SentencePiece kind put a space before a text; text that goes on is tokenized behind a line.
        puts_space = self.bytes_of(tokenizer.encode("a")) != b"a"
        self._anchor = "\n" if puts_space else ""
        self._anchor_ids = tokenizer.encode(self._anchor) if puts_space else []
        self._recall = lru_cache(_NUM_KEPT)(self._encode)

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """The bytes of `ids`, end to end; ids that tokenizer or model do not know stand for nothing."""
        return b"".join(self.pieces(ids))

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each of `ids`."""
        known = len(self._bytes)
        return [self._bytes[i] if i < known else b"" for i in ids]

    def ends(self, ids: Sequence[int]) -> list[int]:
        """How many bytes `ids` have up to each of them, 0 first."""
        return list(accumulate(map(len, self.pieces(ids)), initial=0))

    def encode(self, text: str) -> list[int] | None:
        """Tokens of `text` as the continuation of another; None if its tokens do not spell it."""
        ids = (self._recall if len(text) <= _LONGEST_KEPT else self._encode)(text)
        return None if ids is None else list(ids)

    def _encode(self, text: str) -> tuple[int, ...] | None:
        ids = self._tokenizer.encode(self._anchor + text)
        if ids[: len(self._anchor_ids)] != self._anchor_ids:
            return None
        ids = ids[len(self._anchor_ids) :]
        return tuple(ids) if self.bytes_of(ids) == text.encode() else None

    def window(self, ids: Sequence[int]) -> int | None:
        """Where the last part of `ids` begins that text behind them can change; None if that is too far away.

        The place lies between a letter or digit and a punctuation mark that no token holds together: neither
        merges nor pre-tokenizers look across it.
        """
        if not ids:
            return 0
        known = len(self._bytes)
        right = self._bytes[ids[-1]] if ids[-1] < known else b""
        for start in range(len(ids) - 1, 0, -1):
            if len(ids) - start > _MAX_WINDOW:
                return None
            left = self._bytes[ids[start - 1]] if ids[start - 1] < known else b""
            if left and right and self._cuts[left[-1] << 8 | right[0]]:
                return start
            right = left
        return 0

    def stable(self, text: str, first: Collection[int] | None = None) -> list[int]:
        """The leading tokens of `text` that `encode` also gives for every longer text, or for every longer text that
        goes on with one of the bytes `first`.

        A longer text's tokens cover `text` up to its end, or up to where a token begins that goes beyond it.
        What comes before that place is tokenized as if the text ended there. So what all such places agree on
        holds for every continuation.
        """
        ids = self.encode(text)
        if not ids:
            return []
        data = text.encode()
        for start in self._open_starts(data, first):
            other = self.encode(data[:start].decode())
            ids = ids[: common_length(ids, other or [])]
            if not ids:
                break
        return ids

    def is_open(self, text: str) -> bool:
        """Whether what follows can make a difference to `stable`."""
        data = text.encode()
        return _loose_start(data, None, joins_digits=self._joins_digits) < len(data) or bool(self._beginnings(data))

    def _open_starts(self, data: bytes, first: Collection[int] | None) -> set[int]:
        """Places in `data`, between characters, up to which alone its tokens are sure. `first`: see `stable`."""
        found = _loose_start(data, first, joins_digits=self._joins_digits)
        waiting = self._beginnings(data)
        if first is not None:
            waiting = [p for p in waiting if any(self._begins(data[p:] + bytes([byte])) for byte in first)]
        return self._between_characters(data, waiting) | {found} - {len(data)}

    def _beginnings(self, data: bytes) -> list[int]:
        """Places in `data` from which on it begins a token that is longer."""
        found = []
        for start in range(len(data) - 1, max(-1, len(data) - self._longest), -1):
            if start + 1 < len(data) and not self._joined[data[start] << 8 | data[start + 1]]:
                break  # no token holds these two
            if self._is_beginning(data[start:]):
                found.append(start)
        return found

    def _between_characters(self, data: bytes, starts: list[int]) -> set[int]:
        """`starts`, but for those within a character the places where the tokens that end there may begin."""
        found = set()
        waiting, seen = list(starts), set(starts)
        while waiting:
            start = waiting.pop()
            if data[start] & 0xC0 != 0x80:
                found.add(start)
                continue
            for begin in range(max(0, start - self._longest), start):
                if begin not in seen and self._is_token(data[begin:start]):
                    seen.add(begin)
                    waiting.append(begin)
        return found

    def _is_beginning(self, data: bytes) -> bool:
        """Whether a token begins with `data` and is longer."""
        at = bisect_right(self._sorted, data)
        return at < len(self._sorted) and self._sorted[at].startswith(data)

    def _begins(self, data: bytes) -> bool:
        """Whether a token begins with `data`."""
        at = bisect_left(self._sorted, data)
        return at < len(self._sorted) and self._sorted[at].startswith(data)

    def _is_token(self, data: bytes) -> bool:
        at = bisect_left(self._sorted, data)
        return at < len(self._sorted) and self._sorted[at] == data


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading items agree."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _loose_start(data: bytes, first: Collection[int] | None, *, joins_digits: bool) -> int:
    """Where the end of `data` begins that pre-tokenizers may group anew when text follows: white space (they keep
    its last blank for the next word), digits (grouped by threes, sometimes from the right), contractions. `first`:
    the bytes that may follow; None: any."""
    if first is not None and not first:
        return len(data)
    others = first is None or any(byte >= 0x80 for byte in first)  # letters and digits of other scripts
    start = _run_start(data, len(data), _is_space)
    if joins_digits and (others or any(map(_is_digit, first or ()))):
        start = _run_start(data, start, _is_digit)
    apostrophe = data.rfind(b"'", max(0, len(data) - _CONTRACTION))
    if apostrophe >= 0 and (others or any(chr(byte).isalpha() for byte in first or ())):
        start = min(start, apostrophe)
    return start


def _run_start(data: bytes, end: int, belongs: Callable[[int], bool]) -> int:
    """Where the bytes before `end` begin that all belong together."""
    while end and belongs(data[end - 1]):
        end -= 1
    return end


def _is_space(byte: int) -> bool:
    return byte in b" \t\n\r\x0b\x0c"


def _is_digit(byte: int) -> bool:
    return byte in b"0123456789"


def _neighbours(tokens: Sequence[bytes]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[256, 256]: whether some token holds the two bytes one after the other."""
    joined = np.zeros((256, 256), dtype=np.bool_)
    if tokens:
        lengths = np.array([len(token) for token in tokens])
        stream = np.frombuffer(b"".join(tokens), dtype=np.uint8)
        inside = np.ones(len(stream), dtype=np.bool_)
        inside[np.cumsum(lengths) - 1] = False  # a token's last byte has no neighbour behind it
        first = np.flatnonzero(inside)
        joined[stream[first], stream[first + 1]] = True
    return joined
