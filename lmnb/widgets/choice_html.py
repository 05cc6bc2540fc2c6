"""The decision of a select as static HTML and as text: the same table as `src/run_choice.ts` draws."""

from __future__ import annotations

import math
from typing import Any

from lmnb.widgets.escape import cut, markup, terminal

MOST_CHOICES = 64
_TEXT_LIMIT = 400  # characters of one choice
UNCONDITIONAL = "unconditional_likelihood_normalized"
NAMES = {
    "token_length_normalized": ("mean", "Mean log-probability of the choice's tokens"),
    "greedy_token_selection": (
        "greedy",
        "Log-probability of the last token at which the choice was still compared, token by token",
    ),
    UNCONDITIONAL: ("gain", "Mean log-probability that the prompt adds to the choice's tokens"),
    "chosen_by_api": ("the API", "The API chose by its structured output, and told no scores"),
    "chosen_by_model": ("tokens", "How many of the choice's tokens the model went along with"),
}


def html(choice: dict[str, Any]) -> str:
    """A `details` element; closed, so that a transcript reads on."""
    methods = _methods(choice)
    heads = "".join(
        f'<th scope="col" class="lmnb-number" title="{markup(_name(method)[1])}">{markup(_name(method)[0])}'
        f"{'' if place else '<small> decides</small>'}</th>"
        for place, method in enumerate(methods)
    )
    rows = "".join(_row(choice, methods, row) for row in range(min(MOST_CHOICES, len(choice["choices"]))))
    rest = len(choice["choices"]) - MOST_CHOICES
    more = f"<small>and {rest} more choices</small>" if rest > 0 else ""
    warnings = "".join(f'<p class="lmnb-warning">⚠ {markup(warning)}</p>' for warning in choice["warnings"])
    return (
        f'<details class="lmnb-choices"><summary>1 of {len(choice["choices"])}{" ⚠" if warnings else ""}</summary>'
        f'<table><thead><tr><th scope="col">choice</th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        f"{more}{warnings}</details>"
    )


def text(choice: dict[str, Any]) -> list[str]:
    """Lines: a choice a line with its scores, what each method picked, the warnings."""
    methods = _methods(choice)
    names = [f"{_name(method)[0]}{'' if place else ' (decides)'}" for place, method in enumerate(methods)]
    lines = [f"1 of {len(choice['choices'])}, by {', '.join(names)}:"]
    for row, option in enumerate(choice["choices"][:MOST_CHOICES]):
        scores = [_score(method, row) + ("*" if method["picked"] == row else "") for method in methods]
        shown = cut(" ".join(terminal(option).split()), 60)[0]
        lines.append(f"  {'✓' if option == choice['text'] else ' '} {shown}  {'  '.join(scores)}")
    return lines + [f"  ⚠ {terminal(warning)}" for warning in choice["warnings"]]


def _methods(choice: dict[str, Any]) -> list[dict[str, Any]]:
    if choice["methods"]:
        methods: list[dict[str, Any]] = choice["methods"]
        return methods
    picked = choice["choices"].index(choice["text"]) if choice["text"] in choice["choices"] else -1
    return [{"name": choice["method"], "scores": choice["scores"], "picked": picked}]


def _name(method: dict[str, Any]) -> tuple[str, str]:
    name = method["name"]
    return NAMES.get(name, (name.replace("_", " "), name))


def _score(method: dict[str, Any], row: int) -> str:
    return f"{method['scores'][row]:.3f}" if row < len(method["scores"]) else ""


def _row(choice: dict[str, Any], methods: list[dict[str, Any]], row: int) -> str:
    option = choice["choices"][row]
    tokens = choice["tokens"][row] if row < len(choice["tokens"]) else []
    cells = "".join(
        f'<td class="lmnb-number{" lmnb-best" if method["picked"] == row else ""}">'
        f"{'✓ ' if method['picked'] == row else ''}{_score(method, row)}</td>"
        for method in methods
    )
    head, missing, tail = cut(option, _TEXT_LIMIT)
    label = markup(f"{head} … {missing:,} more characters … {tail}" if missing else head)
    if tokens:
        label = f'<span class="lmnb-tokens">{"".join(map(_chip, tokens))}</span>'
    picked = ' class="lmnb-picked"' if option == choice["text"] else ""
    return f'<tr{picked}><th scope="row">{label}</th>{cells}</tr>'


def _chip(token: list[Any]) -> str:
    shown, logprob, alone = token
    shown = markup(shown.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") or "∅")
    if logprob is None:
        return f'<span class="lmnb-token">{shown}</span>'
    title = f"log-probability {logprob:.3f} · {_percent(logprob)}"
    title += f" · {_percent(alone)} without the prompt" if alone is not None else ""
    return (
        f'<span class="lmnb-token" title="{title}" style="--p:{math.exp(logprob):.3f}">{shown}'
        f"<small>{logprob:.2f}</small></span>"
    )


def _percent(logprob: float) -> str:
    share = 100 * math.exp(logprob)
    return "<0.1 %".replace("<", "&lt;") if share < 0.1 else f"{share:.1f} %" if share < 9.95 else f"{share:.0f} %"
