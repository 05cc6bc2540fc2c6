"""A notebook's cells and outputs as text for a terminal. It knows nothing of kernels or files."""

from __future__ import annotations

import copy
import re
from typing import Any

MAX_LINES = 60
MAX_WIDTH = 72
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def plain(text: str) -> str:
    """`text` without terminal colours."""
    return _ANSI.sub("", text)


def redrawn(text: str) -> str:
    """Of each line that was redrawn with carriage returns, its last state."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(([part for part in line.split("\r") if part] or [""])[-1] for line in lines)


def first_line(source: str) -> str:
    """The first line of a cell that says something, cut to one terminal line."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith("#")] or lines or [""]
    return telling[0] if len(telling[0]) <= MAX_WIDTH else telling[0][: MAX_WIDTH - 1] + "…"


def merged(outputs: list[Any]) -> list[Any]:
    """Copies of a cell's outputs; a stream that arrived in pieces is one output, as it last looked."""
    result: list[Any] = []
    for output in copy.deepcopy(outputs):
        if result and output.output_type == "stream" and output.name == result[-1].get("name"):
            result[-1].text += output.text
        else:
            result.append(output)
    for output in result:
        if output.output_type == "stream":
            output.text = redrawn(output.text)
    return result


def answers(outputs: list[Any]) -> list[str]:
    """What a cell's outputs say as text, each at most MAX_LINES lines; errors and silent outputs are left out."""
    texts = []
    for output in merged(outputs):
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type in ("display_data", "execute_result"):
            texts.append(output.data.get("text/plain", ""))
    return [text for text in map(_shorten, texts) if text]


def _shorten(text: str) -> str:
    lines = plain(text).strip("\n").split("\n")
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"… {len(lines) - MAX_LINES} more lines"]
    return "\n".join(line.rstrip() for line in lines).rstrip()


def indent(text: str) -> str:
    """`text` set off from the left margin."""
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())
