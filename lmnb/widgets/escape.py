"""Makes text of any origin safe to show: as HTML, in a terminal, and as JSON inside a script element."""

from __future__ import annotations

import html
import json
import re
from typing import Any

# Control characters (all but tab and newline) become their visible pictures: a terminal would obey them.
_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_CONTROLS |= {0x7F: "\u2421"} | dict.fromkeys(range(128, 160), "�")
# Letters that are written from right to left, and the controls that turn the direction of what follows them.
_TURNS = re.compile(
    "[\u0590-\u08ff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
# Orders to turn: shown by name, for a terminal would obey them beyond the text that they stand in, and no reader of a
# page would know what the model has read.
_ORDERS = {code: f"⟨U+{code:04X}⟩" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_ISOLATE, _END = "\u2066", "\u2069"


def plain(text: str) -> str:
    """Text for text/plain: no escape sequence survives."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def terminal(text: str, *, open_end: bool = False) -> str:
    """Text of one origin between others, for a terminal: whichever way it runs, it turns nothing beside it, and no
    escape sequence survives. `open_end`: more of it will come, so that its last line is left open."""
    text = plain(text).translate(_ORDERS)
    if text.isascii() or not _TURNS.search(text):
        return text
    lines = text.split("\n")
    for place, line in enumerate(lines):
        turn = _TURNS.search(line)
        if turn is not None:
            closed = "" if open_end and place == len(lines) - 1 else _END
            lines[place] = f"{line[: turn.start()]}{_ISOLATE}{line[turn.start() :]}{closed}"
    return "\n".join(lines)


def markup(text: str) -> str:
    """Text for HTML, as content or as a quoted attribute."""
    return html.escape(plain(text).translate(_ORDERS), quote=True)


def isolated(text: str) -> str:
    """Text for HTML, inside a line: whichever way it runs, it turns nothing that stands beside it."""
    return f"<bdi>{markup(text)}</bdi>" if _TURNS.search(text) else markup(text)


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: it cannot end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def cut(text: str, limit: int) -> tuple[str, int, str]:
    """`text` as (head, number of characters left out, tail), with at most `limit` characters kept."""
    if len(text) <= limit:
        return text, 0, ""
    tail = limit // 4
    head = limit - tail
    return text[:head], len(text) - limit, text[len(text) - tail :]
