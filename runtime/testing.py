"""A deterministic tokenizer for tests and demonstrations: one token a byte, and the three ChatML markers."""

from __future__ import annotations

import re

_MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ByteTokenizer:
    """Implements `Tokenizer`: ids 0 to 255 are bytes, 256 `<|endoftext|>`, 257 `<|im_start|>`, 258 `<|im_end|>`."""

    def __init__(self) -> None:
        self._markers = {256 + i: marker for i, marker in enumerate(_MARKERS)}
        self._marker_ids = {marker: token_id for token_id, marker in self._markers.items()}
        self._pattern = re.compile("(" + "|".join(map(re.escape, _MARKERS)) + ")")
        self.vocab_size = 256 + len(_MARKERS)
        self.eos_ids = frozenset({self._marker_ids["<|endoftext|>"], self._marker_ids["<|im_end|>"]})
        self.special_ids = frozenset(self._markers)
        self.added_ids = self.special_ids
        self.bos_ids: tuple[int, ...] = ()
        self.chat_template: str | None = _CHATML
        self.template_variables = {"bos_token": "", "eos_token": "<|im_end|>"}

    def encode(self, text: str, *, trusted: bool = False) -> list[int]:
        """See `Tokenizer.encode`. Characters that UTF-8 cannot hold (lone surrogates) become `?`."""
        ids: list[int] = []
        for part in self._pattern.split(text) if trusted else [text]:
            if trusted and part in self._marker_ids:
                ids.append(self._marker_ids[part])
            else:
                ids.extend(part.encode("utf-8", "replace"))
        return ids

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        """See `Tokenizer.decode`."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        marker = self._markers.get(token_id)
        return marker.encode() if marker is not None else bytes([token_id])
