"""Why a `select` chose as it did: each choice's tokens, what every method makes of them, and what may mislead.

Reads scores that a decision was made from; asks the model nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmnb.backends.base import Backend, Scores
from lmnb.language.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    mean_logprob,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from lmnb.language.events import ChoiceMade
from lmnb.language.meta import triples

_METHODS: tuple[ChoicesSamplingMethod, ...] = (
    token_length_normalized,
    greedy_token_selection,
    unconditional_likelihood_normalized,
)
_MOST_NAMED = 3  # choices that one warning names


def explained(
    branch: int,
    choices: list[str],
    method: ChoicesSamplingMethod,
    decision: ChoicesDecision,
    scores: Scores,
    backend: Backend,
    prompt: str,
) -> ChoiceMade:
    """The event of a decision, with its explanation. `prompt` is the text before the choice."""
    tokens = _tokens(scores, backend)
    used = {"name": method.name, "scores": method.scores(decision), "picked": choices.index(decision.decision)}
    others = [_verdict(other, choices, scores, backend) for other in _METHODS if other.name != method.name]
    methods = [used, *(verdict for verdict in others if verdict is not None)]
    return ChoiceMade(
        branch=branch,
        text=decision.decision,
        choices=choices,
        scores=method.scores(decision),
        method=method.name,
        tokens=tokens,
        methods=methods,
        warnings=warnings(choices, tokens, prompt),
    )


def warnings(choices: Sequence[str], tokens: Sequence[Sequence[Sequence[Any]]], prompt: str) -> list[str]:
    """What about the choices themselves may mislead a method, a sentence each. `tokens` as in `ChoiceMade`."""
    found = [_length_bias(choices, tokens), _prefixes(choices), *_spaces(choices, prompt)]
    return [warning for warning in found if warning]


def _tokens(scores: Scores, backend: Backend) -> list[list[list[Any]]]:
    rows: list[list[list[Any]]] = []
    for score in scores.choices:
        alone = [entry.logprob for entry in score.unconditional] or [None] * len(score.logprobs)
        conditional = triples(score.logprobs, backend)
        rows.append([[text, value, other] for (value, _, text), other in zip(conditional, alone, strict=True)])
    return rows


def _verdict(
    method: ChoicesSamplingMethod, choices: list[str], scores: Scores, backend: Backend
) -> dict[str, Any] | None:
    """What another method makes of the same scores; None where they do not have what it needs."""
    if any(not score.logprobs for score in scores.choices):
        return None
    measured = all(score.unconditional for score in scores.choices)
    if method.requires_unconditional_logprobs and not measured:
        return None
    conditional = [triples(score.logprobs, backend, with_text=False) for score in scores.choices]
    decision = method(
        choices=choices,
        normalized_prompt_logprobs=[mean_logprob(row) for row in conditional],
        input_token_logprobs=conditional,
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=[triples(s.unconditional, backend, with_text=False) for s in scores.choices]
        if method.requires_unconditional_logprobs
        else None,
    )
    picked = choices.index(decision.decision)
    return {"name": method.name, "scores": method.scores(decision), "picked": picked}


def _length_bias(choices: Sequence[str], tokens: Sequence[Sequence[Sequence[Any]]]) -> str:
    lengths = [len(row) for row in tokens]
    if not all(lengths) or min(lengths) == max(lengths):
        return ""
    sums = [sum(entry[1] or 0.0 for entry in row) for row in tokens]
    means = [total / length for total, length in zip(sums, lengths, strict=True)]
    by_sum, by_mean = sums.index(max(sums)), means.index(max(means))
    if by_sum == by_mean:
        return ""
    return (
        f"The choices have {min(lengths)} to {max(lengths)} tokens, and length decides: the mean per token prefers "
        f"{_quoted(choices[by_mean])}, the whole text's probability {_quoted(choices[by_sum])}."
    )


def _prefixes(choices: Sequence[str]) -> str:
    pairs = [(a, b) for a in choices for b in choices if a != b and b.startswith(a)]
    if not pairs:
        return ""
    named = "; ".join(f"{_quoted(a)} of {_quoted(b)}" for a, b in pairs[:_MOST_NAMED])
    more = f"; and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
    return f"One choice is the beginning of another ({named}{more}): the shorter one is scored as if more could follow."


def _spaces(choices: Sequence[str], prompt: str) -> list[str]:
    led = [choice for choice in choices if choice[:1].isspace()]
    if led and prompt[-1:].isspace() and not prompt.endswith("\n"):
        return [f"The prompt ends with a space and {_named(led)} begins with one: the model rarely writes two."]
    if led and len(led) < len(choices):
        return [f"Only {_named(led)} begins with a space, so the choices are not written alike."]
    if not led and (prompt[-1:].isalnum() or prompt[-1:] in (":", ",", ";")):
        return [
            f"The text before ends with “{prompt[-1]}” and no choice begins with a space, which models expect there."
        ]
    return []


def _named(choices: Sequence[str]) -> str:
    return ", ".join(map(_quoted, choices[:_MOST_NAMED])) + ("…" if len(choices) > _MOST_NAMED else "")


def _quoted(text: str) -> str:
    return f"“{text if len(text) <= 40 else text[:39] + '…'}”"
