"""A run that a notebook's file can hold: of very many pieces, branches and variables, the first and the last.

Front ends refuse outputs above some size (Databricks: 10 MB a cell). Long texts are cut by whoever writes them; this
keeps the number of things small. What is left out is said in its place, with how to get it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from lmnb.widgets.run_model import Branch, RunModel

MOST_ITEMS = 2000  # pieces of transcript, all branches together
MOST_BRANCHES = 600
MOST_VARIABLES = 200
LIVE_SHARE = 8  # while a run goes on, so many times less: the picture is sent again and again
LARGEST = 6_000_000  # characters of one picture
ADVICE = 's.run.save("run.html") keeps all'


def fitted(model: RunModel, draw: Callable[[RunModel], str]) -> str:
    """What `draw` makes of as much of the model as a notebook's file can hold."""
    share = 1 if model.ended else LIVE_SHARE
    picture = draw(shortened(model, share))
    while len(picture) > LARGEST and share < MOST_BRANCHES:
        share *= LIVE_SHARE
        picture = draw(shortened(model, share))
    return picture


def shortened(model: RunModel, share: int = 1) -> RunModel:
    """`model` itself if it is small enough; else one with less in it. The model is not changed.

    `share`: by what to divide the usual limits.
    """
    items, branches, variables = MOST_ITEMS // share, max(1, MOST_BRANCHES // share), MOST_VARIABLES // share
    many = sum(len(branch["items"]) for branch in model.branches.values())
    set_here = sum(len(branch["vars"]) for branch in model.branches.values())
    if many <= items and len(model.branches) <= branches and set_here <= variables:
        return model
    kept = _first_branches(model, branches)
    room = max(4, items // max(1, len(kept)))
    short = RunModel()
    short.head = model.head
    for id in kept:
        branch = model.branches[id]
        left = max(0, variables)
        variables -= len(branch["vars"])
        pieces = _cut_items(branch["items"], room, set(kept))
        there = [mark for mark in branch["marks"] if _same_at(mark["item"], branch["items"], pieces)]
        few = dict(islice(branch["vars"].items(), left))
        shown: Branch = {**branch, "items": pieces, "marks": there, "vars": few}
        short.branches[id] = shown
    if variables < 0 and 0 in short.branches:
        note = _note(f"{-variables:,} more variables not shown")
        short.branches[0]["items"] = [*short.branches[0]["items"], note]
    return short


def _first_branches(model: RunModel, most: int) -> list[int]:
    """The branches nearest to the root, parents before children."""
    depth: dict[int, int] = {}
    for id, branch in model.branches.items():  # a parent comes before its children
        depth[id] = 0 if branch["parent"] is None else depth[branch["parent"]] + 1
    return sorted(sorted(depth, key=lambda id: (depth[id], id))[:most])


def _cut_items(items: list[dict[str, Any]], room: int, kept: set[int]) -> list[dict[str, Any]]:
    """The first and the last of a branch's pieces, with forks that name only branches which are kept."""
    missing = len(items) - room
    if missing > 0:
        half = room // 2
        items = [*items[:half], _note(f"{missing:,} more pieces not shown"), *items[len(items) - (room - half) :]]
    shown: list[dict[str, Any]] = []
    for item in items:
        if item["type"] == "gen" and not kept.issuperset(item["variants"]):
            item = {**item, "variants": [id for id in item["variants"] if id in kept]}
        if item["type"] != "fork":
            shown.append(item)
            continue
        there = [id for id in item["branches"] if id in kept]
        if there:
            shown.append({**item, "branches": there})
        if gone := len(item["branches"]) - len(there):
            shown.append(_note(f"{gone:,} more branches not shown"))
    return shown


def _same_at(index: int, items: list[dict[str, Any]], shown: list[dict[str, Any]]) -> bool:
    return index < len(shown) and shown[index] is items[index]


def _note(what: str) -> dict[str, Any]:
    return {"type": "text", "text": f"\n[… {what}; {ADVICE} …]\n"}
