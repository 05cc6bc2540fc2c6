"""Text that can be written as UTF-8: what files with broken encodings and cut JSON escapes leave behind is not.

Knows nothing of what the text is for.
"""

from __future__ import annotations

import re
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")  # halves of characters: lone surrogates


def well_formed(text: str) -> str:
    """The text with U+FFFD for each half of a character, which neither a tokenizer nor a page can take."""
    return text if text.isascii() else _LONE.sub("\ufffd", text)


def joined_halves(text: str) -> tuple[str, str]:
    """The text with halves that belong together made one character, and U+FFFD for each of the others; and the half
    that it ends with, if the other one may still come."""
    if text.isascii():
        return text, ""
    held = text[-1] if "\ud800" <= text[-1] < "\udc00" else ""
    text = text[: len(text) - len(held)]
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), held


def well_formed_json(value: Any) -> Any:
    """The same for every text in a JSON value; the value itself where nothing is wrong."""
    if not _is_broken(value):
        return value
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed_json(key): well_formed_json(item) for key, item in value.items()}
    return [well_formed_json(item) for item in value]


def _is_broken(value: Any) -> bool:
    if isinstance(value, str):
        return not value.isascii() and _LONE.search(value) is not None
    if isinstance(value, dict):
        return any(_is_broken(key) or _is_broken(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(_is_broken, value))
