"""How the tokens of a constrained generation came about, in static HTML: forced ones, and those that were sampled from
what the constraint allowed."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from lmnb.widgets.escape import markup
from lmnb.widgets.run_model import origin_of

_WORDS = {"forced": "forced by the constraint", "masked": "sampled under the constraint"}


def is_constrained(gen: dict[str, Any]) -> bool:
    """Whether there is anything to tell."""
    return any(origin_of(part) in _WORDS for part in gen["parts"])


def spans(gen: dict[str, Any]) -> str:
    """The text of a generation, each run of tokens of one origin in an element of its own."""
    data, start, pieces = gen["text"].encode("utf-16-le", "surrogatepass"), 0, ""
    for origin, parts in groupby((part for part in gen["parts"] if part[0]), origin_of):
        end = start + 2 * sum(part[0] for part in parts)
        text = markup(data[start:end].decode("utf-16-le", "ignore"))
        known = origin in _WORDS
        pieces += f'<span class="lmnb-{origin}" title="{_WORDS[origin]}">{text}</span>' if known else text
        start = end
    return pieces + markup(data[start:].decode("utf-16-le", "ignore"))


def steps_saved(gen: dict[str, Any]) -> int:
    """How many of the tokens took no step of the model: forced ones, less the sampled ones that they replaced."""
    forced: int = sum(part[1] for part in gen["parts"] if origin_of(part) == "forced")
    return max(0, forced)
