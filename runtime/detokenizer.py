"""From token ids to text, one token at a time and whole characters only.

Works on the bytes of tokens, so that a character spread over several tokens appears when its last byte does.
Knows nothing of stop strings or of requests.
"""

from __future__ import annotations

import codecs

from lmnb.runtime.tokenizer import Tokenizer


class Detokenizer:
    """Text of one growing token sequence, in constant time a token.

    The pieces joined, `finish()` included, equal `tokenizer.decode` of all ids, as they read after a prompt: where
    a tokenizer drops the space that opens a text (SentencePiece), the space stays unless `opens_text`.
    """

    def __init__(self, tokenizer: Tokenizer, *, opens_text: bool = False) -> None:
        self._tokenizer = tokenizer
        self._opens_text = opens_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that became readable with this token: often one word, sometimes nothing."""
        data = self._token_bytes(token_id)
        if self._opens_text and data:
            self._opens_text = False
            if data.startswith(b" ") and not self._tokenizer.decode([token_id]).startswith(" "):
                data = data[1:]
        return self._decoder.decode(data)

    @property
    def is_whole(self) -> bool:
        """Whether the tokens so far end with a whole character."""
        return not self._decoder.getstate()[0]

    def finish(self) -> str:
        """What is left: U+FFFD if the tokens end within a character, else nothing."""
        return self._decoder.decode(b"", final=True)

    def _token_bytes(self, token_id: int) -> bytes:
        # A model's vocabulary may be padded beyond its tokenizer's: such tokens stand for nothing.
        return self._tokenizer.token_bytes(token_id) if token_id < self._tokenizer.vocab_size else b""
