"""Text to token ids and back: the protocol the engine and the local backend rely on.

Special tokens (role markers, end of text) are text like any other unless the caller says that the
text is trusted: that is how a document that contains `<|im_start|>` stays a document.
"""

from __future__ import annotations

from typing import Protocol


class Tokenizer(Protocol):
    """Thread-safe; its data never changes."""

    vocab_size: int  # highest id + 1
    eos_ids: frozenset[int]  # tokens that end a generation by themselves
    special_ids: frozenset[int]  # role markers and the like: never data
    added_ids: frozenset[int]  # every token that is matched as a whole, special or not
    bos_ids: tuple[int, ...]  # what the tokenizer itself puts before a text (often nothing)
    chat_template: str | None  # Jinja source
    template_variables: dict[str, str]  # bos_token, eos_token ... for the template

    def encode(self, text: str, *, trusted: bool = False) -> list[int]:
        """Token ids of `text`, nothing added. Special tokens are recognised only if `trusted`."""
        ...

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        """Text of `ids`, special tokens shown as they are written; incomplete characters become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for (a special token: its written form)."""
        ...
