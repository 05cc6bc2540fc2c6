"""A generation's tokens for people to choose from: which could have been another, and where a branch may part."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

from lmnb.errors import ArgumentError
from lmnb.language.generated import Generated

_VISIBLE = str.maketrans({"\n": "↵\n", "\t": "⇥\t"})
_SURE = 0.9  # probability


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One token. `index` is its place, from 0; log-probabilities are the model's own, None where not asked for."""

    index: int
    text: str
    id: int | None
    logprob: float | None = None
    alternatives: tuple[tuple[str, float], ...] = ()  # the likeliest tokens there, itself included: text, logprob

    @property
    def probability(self) -> float | None:
        """Between 0 and 1."""
        return None if self.logprob is None else math.exp(self.logprob)


class GeneratedTokens(list[GeneratedToken]):
    """A generation's tokens, in order. A notebook shows each as a box with its place below it."""

    @property
    def text(self) -> str:
        """All token strings, one after the other."""
        return "".join(token.text for token in self)

    def unsure(self) -> GeneratedToken:
        """The token that the model was least sure of. ArgumentError if no log-probabilities were asked for."""
        known = [token for token in self if token.logprob is not None]
        if not known:
            raise ArgumentError("these tokens have no log-probabilities: generate them with return_logprob=True")
        return min(known, key=lambda token: token.logprob or 0.0)

    def __str__(self) -> str:
        return "|".join(token.text for token in self)

    def _repr_html_(self) -> str:
        boxes = "".join(_box(token) for token in self)
        return (
            '<div class="lmnb-lens mathjax_ignore">'
            f"<small>{len(self)} tokens; the number is a token's place</small>"
            f'<div style="display:flex;flex-wrap:wrap;gap:2px;font-family:monospace">{boxes}</div></div>'
        )


def generated_tokens(generated: Generated) -> GeneratedTokens:
    """The tokens of a generation, as far as it has come."""
    backend = generated.stream.backend
    found = GeneratedTokens()
    for place, text in enumerate(generated.pieces()):
        entry = generated.logprobs.get(place)
        tops = () if entry is None else tuple((backend.token_text(token), value) for token, value in entry.top)
        token_id = generated.ids[place] if generated.by_tokens else None
        found.append(GeneratedToken(place, text, token_id, None if entry is None else entry.logprob, tops))
    return found


def _box(token: GeneratedToken) -> str:
    others = ", ".join(f"{text!r} {math.exp(value):.1%}" for text, value in token.alternatives)
    probability = token.probability
    shade = 0.0 if probability is None else (1 - probability) * 0.45
    note = "" if probability is None or probability >= _SURE else f" {probability:.0%}"
    return (
        f'<span title="{html.escape(others)}" style="background:rgba(213,94,0,{shade:.2f});text-align:center;'
        'outline:1px solid rgba(128,128,128,.4);padding:0 2px;white-space:pre-wrap;unicode-bidi:isolate">'
        f"{html.escape(token.text.translate(_VISIBLE))}<br><small>{token.index}{note}</small></span>"
    )
