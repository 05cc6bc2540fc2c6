"""From token ids to text, one token at a time and whole characters only.

Works on the bytes of tokens, so that a character spread over several tokens appears when its last byte does.
Knows nothing of stop strings or of requests.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from lmnb.runtime.tokenizer import Tokenizer


class Detokenizer:
    """Text of one growing token sequence, in constant time a token.

    The pieces joined, `finish()` included, equal `tokenizer.decode` of all ids. A space that opens a token stays:
    what is generated goes on from a prompt (SentencePiece would drop it at the beginning of a text only).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._begun = b""  # of a character whose other bytes are still to come

    def push(self, token_id: int) -> str:
        """The text that became readable with this token: often one word, sometimes nothing."""
        # A model's vocabulary may be padded beyond its tokenizer's: such tokens stand for nothing.
        known = token_id < self._tokenizer.vocab_size
        return self.push_bytes(self._tokenizer.token_bytes(token_id) if known else b"")

    def bytes_of(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of several tokens; nothing is pushed."""
        known = self._tokenizer.vocab_size
        return b"".join([self._tokenizer.token_bytes(i) for i in token_ids if i < known])

    def push_bytes(self, data: bytes) -> str:
        """The text that became readable with these bytes of a token."""
        data = self._begun + data
        text, size = utf_8_decode(data, "replace", False)
        self._begun = data[size:]
        return text

    @property
    def is_whole(self) -> bool:
        """Whether the tokens so far end with a whole character."""
        return not self._begun

    @property
    def pending(self) -> int:
        """Bytes of an unfinished character at the end."""
        return len(self._begun)

    def finish(self) -> str:
        """What is left: U+FFFD if the tokens end within a character, else nothing."""
        rest, self._begun = self._begun, b""
        return rest.decode(errors="replace")
