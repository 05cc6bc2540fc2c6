"""Random texts of a grammar: what a model that knows nothing might write."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from lmnb.runtime.grammar import Grammars
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size)
_MOST_BYTES = 300
_KINDS = (
    b"0123456789", b"0", b"9", b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", b"-+.eE", b" ", b"\\", b"tfn[{",
    bytes(range(0x80, 0x100)), bytes(range(33, 127)),
)  # fmt: skip
_CLOSING = b'"]}'


def random_text(matcher: Any, rng: random.Random) -> str | None:
    """A random walk from the matcher's state, which takes each kind of character as often as any other, and likes to
    close things; None if it does not end soon. The matcher is changed."""
    mask = np.zeros(-(-TOKENIZER.vocab_size // 32), dtype=np.int32)
    close = rng.choice((0.1, 0.3, 0.6))
    out = bytearray()
    while len(out) < _MOST_BYTES and matcher.fill(mask):
        allowed = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
        ends = allowed & TOKENIZER.eos_ids
        allowed -= ends
        if not allowed or (ends and rng.random() < 0.4):
            return out.decode() if ends else None
        late = len(out) > _MOST_BYTES // 3
        closing = sorted(allowed & set(_CLOSING))
        if closing and rng.random() < (0.8 if late else close):
            token = rng.choice(closing)
        else:
            kinds = [found for kind in _KINDS if (found := sorted(allowed & set(kind)))]
            token = rng.choice(rng.choice(kinds) if kinds else sorted(allowed))
        assert matcher.accept(token)
        out.append(token)
    return None
