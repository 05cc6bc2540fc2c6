"""Where branches part from inside a generation, in static HTML: the places in the text, and what became of what."""

from __future__ import annotations

from typing import Any

from lmnb.language.token_parts import index_of_units
from lmnb.widgets.escape import isolated
from lmnb.widgets.origin_html import tokens_between
from lmnb.widgets.run_model import Branch, RunModel, given_units, kept_units, origin_of
from lmnb.widgets.text_html import folded

_WORD = 32  # characters of what stood, and stands, where a branch parts; as in the live view (`run_lane.ts`)
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})


def parted(model: RunModel, gen: dict[str, Any], limit: int) -> str:
    """The text of a generation with the places where branches part from it, or where it parted, and what was put there;
    "" if there is no such place. `limit`: characters of each piece between them."""
    branches = [model.branches[id] for id in gen["variants"]]
    signs = [(branch["at"][1], _sign(branch)) for branch in branches if branch["at"] is not None]
    kept, given = kept_units(gen), given_units(gen)
    if any(origin_of(part) in ("kept", "given") for part in gen["parts"][:1]):
        signs.append((kept, "↳"))
        signs += [(given, "")] if given > kept else []
    if not signs:
        return ""
    whole, start, pieces = gen["text"], 0, ""
    for at, sign in sorted(signs):
        end = index_of_units(whole, at)
        if text := _piece(gen, start, end, limit):
            kind = "kept" if at <= kept else "given" if at <= given else ""
            tag = "b" if kind == "given" else "span"
            pieces += f'<{tag} class="lmnb-{kind}">{text}</{tag}>' if kind else text
        pieces += f'<small class="lmnb-parting">{sign}</small>' if sign else ""
        start = end
    return pieces + _piece(gen, start, len(whole), limit)


def _piece(gen: dict[str, Any], start: int, stop: int, limit: int) -> str:
    return folded(gen["text"][start:stop], limit, lambda i, j: tokens_between(gen, start + i, start + j))


def changed(model: RunModel, branch: Branch) -> str:
    """`␣is → ␣was`: what the origin says where the branch parts, and what stands there now; "" if it is of a fork."""
    if branch["at"] is None:
        return ""
    number, at = branch["at"]
    before = _token_at(_generations(model.branches[branch["parent"] or 0])[number], at)
    own = _generations(branch)[:1]
    after = branch["given"] or (_token_at(own[0], at) if own else "")
    shown = f"{_short(before) or 'end'} → {_short(after) or 'drawn anew'}"
    return f'<p class="lmnb-parted">{isolated(shown)}</p>'


def _generations(branch: Branch) -> list[dict[str, Any]]:
    return [item for item in branch["items"] if item["type"] == "gen" and item["kind"] == "gen"]


def _token_at(gen: dict[str, Any], at: int) -> str:
    """The token that begins at, or first after, a place in the text."""
    start = 0
    for length, *_ in gen["parts"]:
        if start >= at and length > 0:
            text: str = gen["text"]
            return text[index_of_units(text, start) : index_of_units(text, start + length)]
        start += length
    return ""


def _short(text: str) -> str:
    return (text if len(text) <= _WORD else f"{text[: _WORD - 1]}…").translate(_VISIBLE)


def _sign(branch: Branch) -> str:
    """Marks in the text where a branch parts from it: `↳1`."""
    return "↳" + branch["label"].rpartition("~")[2]
