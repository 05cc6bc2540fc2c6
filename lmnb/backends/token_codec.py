"""What a token stream must know of a tokenizer: bytes of tokens, where a text may be cut, where markers stand.

A marker is a token that stands for a role, an end of text, a tool call ... and never for data.
It knows nothing of roles or programs. One codec serves all streams of a runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmnb.runtime.tokenizer import Tokenizer


class TokenCodec:
    """A tokenizer with the few facts that incremental tokenization needs, looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {}
        # Data never yields an added token, special or not, but for the runs of white space that some models have.
        blank = {i for i in tokenizer.added_ids if not self.token_bytes(i).strip()}
        self.marker_ids = (tokenizer.added_ids - blank) | tokenizer.special_ids | tokenizer.eos_ids
        marker_texts = [self.marker_text(i) for i in self.marker_ids]
        self.longest_marker = max(map(len, marker_texts), default=0)  # characters
        # A repair window must hold a whole run of white space that was typed in pieces.
        self.reach = max([8, *(len(self.token_bytes(i)) for i in blank)])  # bytes
        # Tokenizers of the SentencePiece kind put a space before a text: always, or before the very first text
        # only, and some of them only where the text does not begin with one.
        self._prefix_space = self.bytes_of(tokenizer.encode("a")) == b" a"
        self._adds_to_space = self._prefix_space and self.bytes_of(tokenizer.encode(" a")) == b"  a"
        self._prefix_space_everywhere = self._prefix_space and self._prefixed_after_marker(marker_texts)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, remembered."""
        found = self._bytes.get(token_id)
        if found is None:
            # A model's vocabulary may be padded beyond its tokenizer's: such tokens stand for nothing.
            known = token_id < self.tokenizer.vocab_size
            found = self._bytes[token_id] = self.tokenizer.token_bytes(token_id) if known else b""
        return found

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """The bytes of `ids`, end to end."""
        return b"".join(map(self.token_bytes, ids))

    def marker_text(self, token_id: int) -> str:
        """The written form of an added token."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def puts_space(self, *, first: bool) -> bool:
        """Whether the tokenizer puts a space before a text at the start of everything (`first`) or right behind a
        marker."""
        return self._prefix_space if first else self._prefix_space_everywhere

    def encode_start(self, text: str, *, first: bool) -> list[int]:
        """Data at the start of everything (`first`) or right behind a marker."""
        return self.tokenizer.encode(text) if self.puts_space(first=first) else self.encode_inside(text)

    def encode_inside(self, text: str) -> list[int]:
        """Data that continues a text, so that no space is put before it."""
        if not self._prefix_space:
            return self.tokenizer.encode(text)
        if text.startswith(" ") and not self._adds_to_space:
            return self.tokenizer.encode(text)
        if text.startswith(" ") and len(text) > 1:
            return self.tokenizer.encode(text[1:])
        anchor = self.tokenizer.encode("\n")
        ids = self.tokenizer.encode("\n" + text)
        return ids[len(anchor) :] if ids[: len(anchor)] == anchor else self.tokenizer.encode(text)

    def without_put_space(self, text: str, *, first: bool, own_space: bool) -> str:
        """A start's text as it was before the tokenizer put a space. `own_space`: whether it began with one."""
        put = self.puts_space(first=first) and (self._adds_to_space or not own_space)
        return text.removeprefix(" ") if put else text

    def split_trusted(self, text: str) -> list[str | int]:
        """A program's own text as plain pieces and the ids of the markers between them.

        White space that the tokenizer lets a marker swallow belongs to it.
        """
        pieces: list[str | int] = []
        plain: list[int] = []
        ids = self.tokenizer.encode(text, trusted=True)
        if self.marker_ids.isdisjoint(ids):
            return [text] if text else []
        for token_id in ids:
            if token_id in self.marker_ids:
                self._flush(plain, pieces, text)
                pieces.append(token_id)
            else:
                plain.append(token_id)
        self._flush(plain, pieces, text)
        return pieces

    def single_marker(self, text: str) -> int | None:
        """The marker that `text` is the written form of, if it is one."""
        ids = self.tokenizer.encode(text, trusted=True)
        return ids[0] if len(ids) == 1 and ids[0] in self.marker_ids else None

    def is_safe_cut(self, left: int, right: int) -> bool:
        """Whether a word ends with token `left` and ` word` begins with token `right`.

        No pre-tokenizer in use looks across such a place and no token spans it, so each side can be
        tokenized by itself.
        """
        head = self.token_bytes(right)[:8].decode("utf-8", errors="ignore")
        if not head.startswith(" ") or not head[1:2].isalpha():
            return False
        return self.token_bytes(left).decode("utf-8", errors="ignore")[-1:].isalpha()

    def starts_inside_character(self, token_id: int) -> bool:
        """Whether a token's first byte continues a UTF-8 character."""
        data = self.token_bytes(token_id)
        return bool(data) and data[0] & 0xC0 == 0x80

    def _flush(self, plain: list[int], pieces: list[str | int], whole: str) -> None:
        """Add the text of `plain`, which stands in `whole` after `pieces`."""
        if not plain:
            return
        text = self.bytes_of(plain).decode("utf-8", errors="replace")
        plain.clear()
        text = self.without_put_space(text, first=not pieces, own_space=not pieces and whole.startswith(" "))
        if text:
            pieces.append(text)

    def _prefixed_after_marker(self, marker_texts: Sequence[str]) -> bool:
        for marker in marker_texts:
            ids = self.tokenizer.encode(marker + "a", trusted=True)
            if len(ids) > 1 and ids[0] in self.marker_ids:
                return self.bytes_of(ids[1:]) == b" a"
        return True
