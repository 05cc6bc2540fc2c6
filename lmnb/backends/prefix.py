"""How far sequences agree from their start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

S = TypeVar("S", str, tuple[int, ...], list[int], list[str])


def common_prefix_length(sequences: Sequence[S]) -> int:
    """The number of leading items that all `sequences` (at least one) share."""
    # Whatever lies between the least and the greatest sequence agrees where these two do.
    least, greatest = min(sequences), max(sequences)
    for index, item in enumerate(least):
        if item != greatest[index]:
            return index
    return len(least)
