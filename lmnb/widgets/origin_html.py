"""How the tokens of a constrained generation came about, in static HTML: forced ones, and those that were sampled from
what the constraint allowed."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from lmnb.language.token_parts import index_of_units, units
from lmnb.widgets.run_model import origin_of
from lmnb.widgets.text_html import fold, lines, opening

_WORDS = {"forced": "forced by the constraint", "masked": "sampled under the constraint"}


def is_constrained(gen: dict[str, Any]) -> bool:
    """Whether there is anything to tell."""
    return any(origin_of(part) in _WORDS for part in gen["parts"])


def spans(gen: dict[str, Any]) -> str:
    """The text of a generation, each run of tokens of one origin in an element of its own; the middle of a long text
    opens on a click."""
    whole = gen["text"]
    place = fold(whole)
    if place is None:
        return _spans(gen, 0, len(whole))
    hidden = opening(_spans(gen, *place), place[1] - place[0], tokens_between(gen, *place))
    return _spans(gen, 0, place[0]) + hidden + _spans(gen, place[1], len(whole))


def tokens_between(gen: dict[str, Any], start: int, stop: int) -> int:
    """How many tokens of a generation begin between two places in its text."""
    first, last = units(gen["text"][:start]), units(gen["text"][:stop])
    place = found = 0
    for part in gen["parts"]:
        found += part[1] if first <= place < last else 0
        place += part[0]
    return found


def _spans(gen: dict[str, Any], first: int, last: int) -> str:
    whole, place, start, pieces = gen["text"], 0, first, ""
    for origin, parts in groupby((part for part in gen["parts"] if part[0]), origin_of):
        place += sum(part[0] for part in parts)
        end = min(index_of_units(whole, place), last)
        if end <= start:
            continue
        text = lines(whole[start:end])
        known = origin in _WORDS
        pieces += f'<span class="lmnb-{origin}" title="{_WORDS[origin]}">{text}</span>' if known else text
        start = end
    return pieces + lines(whole[start:last])


def steps_saved(gen: dict[str, Any]) -> int:
    """How many of the tokens took no step of the model: forced ones, less the sampled ones that they replaced."""
    forced: int = sum(part[1] for part in gen["parts"] if origin_of(part) == "forced")
    return max(0, forced)
