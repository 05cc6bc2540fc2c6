"""Keeps very long texts out of messages: a front end gets both ends of them, and the rest when a reader asks.

The kernel's own model stays whole.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lmnb.language.token_parts import units
from lmnb.widgets.escape import cut

LONGEST = 200_000  # characters of one text in a message


def slim_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with long texts cut; `cut` says where (in UTF-16 units) and how many units are missing."""
    return [_slim_event(event) for event in events]


def slim_model(model: dict[str, Any], wanted: Collection[tuple[int, int]] = ()) -> dict[str, Any]:
    """The same; the texts in `wanted` (branch and item) stay whole."""
    branches = [_slim_branch(branch, wanted) for branch in model["branches"]]
    return {**model, "branches": branches}


def _slim_event(event: dict[str, Any]) -> dict[str, Any]:
    if event["type"] == "text" and len(event["text"]) > LONGEST:
        return {**event, **_slim(event["text"])}
    if event["type"] == "var" and len(event["value"]) > LONGEST:
        return {**event, "value": _short(event["value"])}
    return event


def _slim_branch(branch: dict[str, Any], wanted: Collection[tuple[int, int]]) -> dict[str, Any]:
    items = branch["items"]
    long = [
        index
        for index, item in enumerate(items)
        if item["type"] == "text" and len(item["text"]) > LONGEST and (branch["id"], index) not in wanted
    ]
    values = any(len(variable["value"]) > LONGEST for variable in branch["vars"])
    if not long and not values:
        return branch
    items = list(items)
    for index in long:
        items[index] = {**items[index], **_slim(items[index]["text"])}
    variables = [{**variable, "value": _short(variable["value"])} for variable in branch["vars"]]
    return {**branch, "items": items, "vars": variables}


def _slim(text: str) -> dict[str, Any]:
    head, missing, tail = cut(text, LONGEST)
    return {"text": head + tail, "cut": {"at": units(head), "missing": units(text[len(head) : len(head) + missing])}}


def _short(value: str) -> str:
    head, missing, tail = cut(value, LONGEST)
    return f"{head} … {missing:,} more characters … {tail}" if missing else value
