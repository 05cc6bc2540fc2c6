"""What views may ask of generated text, token by token: when it came, how it came about, what else was likely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmnb.backends.base import Backend
from lmnb.runtime.request import Origin, TokenLogprob

_ORDINARY: tuple[Any, ...] = (None, "free", [])


def part(
    text: str,
    num_tokens: int,
    backend: Backend,
    *,
    seconds: float | None = None,
    origin: Origin = "free",
    logprobs: Sequence[TokenLogprob] = (),
) -> list[Any]:
    """One piece as `TokensGenerated.parts` has it; what is as usual is left out from the end on.

    `[length, tokens, seconds, origin, details]`: length of its text in UTF-16 units; seconds since the generation
    began; for each token whose log-probability was asked for, `[text, log-probability, [[text, log-probability], ...]]`
    with the likeliest tokens at its place.
    """
    details = [
        [
            backend.token_text(entry.token_id),
            None if entry.logprob is None else round(entry.logprob, 4),
            [[backend.token_text(token_id), round(value, 4)] for token_id, value in entry.top],
        ]
        for entry in logprobs
    ]
    when = None if seconds is None else round(seconds, 3)
    found: list[Any] = [units(text), num_tokens, when, origin, details]
    while len(found) > 2 and found[-1] == _ORDINARY[len(found) - 3]:
        found.pop()
    return found


def units(text: str) -> int:
    """Length as browsers count it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
