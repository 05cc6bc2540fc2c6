"""What views may ask of generated text, token by token: when it came, how it came about, what else was likely."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lmnb.backends.base import Backend
from lmnb.runtime.request import Origin, SamplingParams, TokenLogprob

_TIE = 1e-3  # log-probabilities this close are equal: they come from numbers of few digits
_ORDINARY: tuple[Any, ...] = (None, "free", [])


def part(
    text: str,
    num_tokens: int,
    backend: Backend,
    *,
    seconds: float | None = None,
    origin: Origin = "free",
    logprobs: Sequence[TokenLogprob] = (),
    greedy: bool = False,
    ruled_out: Collection[int] = (),
) -> list[Any]:
    """One piece as `TokensGenerated.parts` has it; what is as usual is left out from the end on.

    `[length, tokens, seconds, origin, details]`: length of its text in UTF-16 units; seconds since the generation
    began; for each token whose log-probability was asked for, `[text, log-probability, [[text, log-probability], ...]]`
    with the likeliest tokens at its place, and the token's log-probability among those that a constraint allowed there,
    if one did. With `greedy`, where the likeliest allowed token is taken, those that were
    likelier than the token were ruled out (by a constraint, or as tokens that no text may hold): a third entry, 1.
    So were all others where a constraint forced the token, and those that are known to be: `ruled_out`.
    """
    details = [
        [
            backend.token_text(entry.token_id),
            None if entry.logprob is None else round(entry.logprob, 4),
            [
                [
                    backend.token_text(token_id),
                    round(value, 4),
                    *([1] if token_id in ruled_out or _ruled_out(token_id, value, entry, greedy) else []),
                ]
                for token_id, value in entry.top
            ],
            *([] if entry.masked is None else [round(entry.masked, 4)]),
        ]
        for entry in logprobs
    ]
    when = None if seconds is None else round(seconds, 3)
    found: list[Any] = [units(text), num_tokens, when, origin, details]
    while len(found) > 2 and found[-1] == _ORDINARY[len(found) - 3]:
        found.pop()
    return found


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest allowed token is always taken, by the model's own log-probabilities."""
    penalties = (params.frequency_penalty, params.presence_penalty, params.repetition_penalty - 1)
    return params.temperature == 0 and not any(penalties)


def _ruled_out(token_id: int, value: float, chosen: TokenLogprob, greedy: bool) -> bool:
    if chosen.masked == 0:  # a constraint left nothing else
        return token_id != chosen.token_id
    if not greedy:
        return False
    if chosen.logprob is None:  # it is not among the likeliest, which were all likelier then
        return token_id != chosen.token_id
    return value > chosen.logprob + _TIE


def units(text: str) -> int:
    """Length as browsers count it, in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def index_of_units(text: str, place: int) -> int:
    """The index in `text` of a place that browsers count; behind a character where it lies inside one."""
    if text.isascii():
        return min(place, len(text))
    return len(text.encode("utf-16-le", "surrogatepass")[: 2 * place].decode("utf-16-le", "surrogatepass"))
