"""Folds a run's events into one JSON-able picture of it. `src/run_model.ts` is the same reducer.

Takes events in their wire form (`lmnb.language.events.to_json`). Knows nothing of threads or of drawing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from lmnb.language.token_parts import units

Wire = Mapping[str, Any]


class Branch(TypedDict):
    """One lane. `items` are in the order they appeared; each is a dict with a `type`:

    role, role_end, text, image, gen, fork (ids of the branches opened there) and join. A branch that parts from inside
    a generation stands in that item's `variants`; `parted` lists the items that have some.
    """

    id: int
    parent: int | None
    index: int
    fork: int
    label: str
    program: str | None
    row: int | None
    at: list[int] | None  # of a branch that parts from inside a generation: see `BranchOpened`
    note: str | None
    given: str | None
    name: str | None  # the variable that has its state
    status: str
    error: str | None
    reused: int
    computed: int
    generated: int
    items: list[dict[str, Any]]
    parted: list[int]
    marks: list[dict[str, Any]]  # item, at (UTF-16 units in its text, or None) and why: see `rerun.py`
    vars: dict[str, dict[str, Any]]  # by name, in the order in which they were first set


class RunModel:
    """The state of one run after the events so far."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {
            "run": "",
            "program": "",
            "model": "",
            "time": 0.0,
            "cell": None,
            "rerun": False,
            "status": "running",
            "seconds": None,
            "error": None,
            "reused": 0,
            "computed": 0,
            "generated": 0,
            "first_token_seconds": None,
            "gen_seconds": 0.0,
        }
        self.branches: dict[int, Branch] = {}

    @property
    def ended(self) -> bool:
        """Whether the run's last event is in."""
        return bool(self.head["status"] != "running")

    def to_json(self) -> dict[str, Any]:
        """The whole state. Shares its parts with the model: serialise it before applying more events."""
        branches = [{**branch, "vars": list(branch["vars"].values())} for branch in self.branches.values()]
        return {**self.head, "branches": branches}

    def apply_all(self, events: Iterable[Wire]) -> None:
        """Fold events in, in order."""
        for event in events:
            self.apply(event)

    def apply(self, event: Wire) -> None:
        """Fold one event in. KeyError for an unknown type or a branch that was never opened."""
        _REDUCERS[event["type"]](self, event)

    def tokens_per_second(self) -> float | None:
        """Generated tokens over the time spent generating; None before a generation has ended.

        The sum of the generations' times counts parallel branches many times over, the run's own time counts
        pauses of the program: the smaller of the two is the closer one.
        """
        return rate(self.head["generated"], self.head["gen_seconds"], self.head["seconds"])

    def _run(self, event: Wire) -> None:
        for field in ("run", "program", "model", "time", "cell"):
            self.head[field] = event.get(field)
        self._open({"branch": 0, "parent": None, "index": 0, "fork": 0, "label": "0"})

    def _open(self, event: Wire) -> None:
        self.branches[event["branch"]] = {
            "id": event["branch"],
            "parent": event["parent"],
            "index": event["index"],
            "fork": event["fork"],
            "label": event["label"],
            "program": event.get("program"),
            "row": event.get("row"),
            "at": event.get("at"),
            "note": event.get("note"),
            "given": event.get("given"),
            "name": None,
            "status": "running",
            "error": None,
            "reused": 0,
            "computed": 0,
            "generated": 0,
            "items": [],
            "parted": [],
            "marks": [],
            "vars": {},
        }

    def _branch(self, event: Wire) -> None:
        parent, fork, at = self.branches[event["parent"]], event["fork"], event.get("at")
        items = parent["items"]
        if at is not None:
            places = [place for place, item in enumerate(items) if item["type"] == "gen" and item["kind"] == "gen"]
            place = places[at[0]]
            items[place]["variants"].append(event["branch"])
            parent["parted"] += [place] if place not in parent["parted"] else []
            self._open(event)
            return
        for item in reversed(items):
            if item["type"] == "fork" and item["fork"] == fork:
                item["branches"].append(event["branch"])
                break
        else:
            items.append({"type": "fork", "fork": fork, "branches": [event["branch"]]})
        self._open(event)

    def _role(self, event: Wire) -> None:
        self._items(event).append({"type": "role", "role": event["role"], "prefix": event["prefix"]})

    def _role_end(self, event: Wire) -> None:
        self._items(event).append({"type": "role_end", "suffix": event["suffix"]})

    def _text(self, event: Wire) -> None:
        items = self._items(event)
        if items and items[-1]["type"] == "text":
            items[-1]["text"] += event["text"]
        else:
            items.append({"type": "text", "text": event["text"]})

    def _image(self, event: Wire) -> None:
        fields = ("type", "text", "mime", "width", "height", "num_bytes", "digest", "preview")
        self._items(event).append({**{key: event[key] for key in fields}, "frames": event.get("frames", 1)})

    def _gen(self, event: Wire) -> None:
        self._items(event).append(
            {
                "type": "gen",
                "var": event["var"],
                "kind": event["kind"],
                "constraint": event.get("constraint"),
                "line": event.get("line"),
                "text": "",
                "parts": [],
                "tokens": 0,
                "status": "running",
                "finish_reason": None,
                "matched": None,
                "reused": 0,
                "computed": 0,
                "first_token_seconds": None,
                "seconds": None,
                "choice": None,
                "variants": [],
            }
        )

    def _tokens(self, event: Wire) -> None:
        gen = self._open_gen(event)
        gen["text"] += event["text"]
        gen["parts"] += parts_of(event)
        self._count_generated(event["branch"], gen, event["num_tokens"])

    def _choice(self, event: Wire) -> None:
        gen = self._open_gen(event)
        gen["text"] = event["text"]
        gen["choice"] = {key: event[key] for key in ("text", "choices", "scores", "method")}
        gen["choice"] |= {key: event.get(key, []) for key in ("tokens", "methods", "warnings")}

    def _gen_end(self, event: Wire) -> None:
        gen = self._open_gen(event)
        gen["status"] = _STATUS_OF_REASON.get(event["finish_reason"], "done")
        for field in ("finish_reason", "matched", "reused", "computed", "first_token_seconds", "seconds"):
            gen[field] = event[field]
        if event.get("grammar") is not None:
            gen["grammar"] = event["grammar"]
        if event.get("cut"):
            gen["cut"] = True
        self._count_generated(event["branch"], gen, event["generated"] - gen["tokens"])
        for total in (self.head, self.branches[event["branch"]]):
            total["reused"] += event["reused"]
            total["computed"] += event["computed"]
        self.head["gen_seconds"] += event["seconds"]
        if self.head["first_token_seconds"] is None:
            self.head["first_token_seconds"] = event["first_token_seconds"]

    def _var(self, event: Wire) -> None:
        name = event["name"]
        branch = self.branches[event["branch"]]
        variable = {"name": name, "value": event["value"], "kind": event.get("kind", "str")}
        made = branch["items"][-1] if branch["items"] else {}
        if made.get("var") == name and is_incomplete(made):
            variable["incomplete"] = True
        branch["vars"][name] = variable

    def _named(self, event: Wire) -> None:
        self.branches[event["branch"]]["name"] = event["name"]

    def _resume(self, event: Wire) -> None:
        self.head.update(status="running", seconds=None)

    def _rerun(self, event: Wire) -> None:
        self.head["rerun"] = True

    def _mark(self, event: Wire) -> None:
        self.branches[event["branch"]]["marks"].append({key: event[key] for key in ("item", "at", "why")})

    def _join(self, event: Wire) -> None:
        item = {"type": "join", "branches": list(event["branches"]), "mode": event["mode"]}
        self.branches[event["parent"]]["items"].append(item)

    def _branch_end(self, event: Wire) -> None:
        branch = self.branches[event["branch"]]
        branch["error"] = event.get("error")
        self._end_branch(branch, event["status"])

    def _run_end(self, event: Wire) -> None:
        self.head.update(status=event["status"], seconds=event["seconds"], error=event.get("error"))
        for branch in self.branches.values():
            if branch["status"] == "running":
                self._end_branch(branch, event["status"])

    def _end_branch(self, branch: Branch, status: str) -> None:
        branch["status"] = status
        for item in branch["items"]:
            if item["type"] == "gen" and item["status"] == "running":
                item["status"] = status

    def _items(self, event: Wire) -> list[dict[str, Any]]:
        return self.branches[event["branch"]]["items"]

    def _open_gen(self, event: Wire) -> dict[str, Any]:
        for item in reversed(self._items(event)):
            if item["type"] == "gen":
                gen: dict[str, Any] = item
                return gen
        raise KeyError(f"branch {event['branch']} has no generation")

    def _count_generated(self, branch: int, gen: dict[str, Any], num_tokens: int) -> None:
        gen["tokens"] += num_tokens
        self.branches[branch]["generated"] += num_tokens
        self.head["generated"] += num_tokens


_STATUS_OF_REASON = {"cancelled": "cancelled", "error": "failed"}
_REDUCERS = {
    "run": RunModel._run,
    "branch": RunModel._branch,
    "role": RunModel._role,
    "role_end": RunModel._role_end,
    "text": RunModel._text,
    "image": RunModel._image,
    "gen": RunModel._gen,
    "tokens": RunModel._tokens,
    "choice": RunModel._choice,
    "gen_end": RunModel._gen_end,
    "var": RunModel._var,
    "join": RunModel._join,
    "named": RunModel._named,
    "resume": RunModel._resume,
    "rerun": RunModel._rerun,
    "mark": RunModel._mark,
    "branch_end": RunModel._branch_end,
    "run_end": RunModel._run_end,
}


def rate(generated: int, gen_seconds: float, run_seconds: float | None) -> float | None:
    """Tokens per second of `generated` tokens; None where no time was measured."""
    seconds = gen_seconds if run_seconds is None else min(gen_seconds, run_seconds)
    return generated / seconds if seconds > 0 and generated else None


def parts_of(event: Wire) -> list[list[Any]]:
    """The parts of a token event (see `lmnb.language.token_parts`); one for all of it where it has none."""
    parts: list[list[Any]] = event.get("parts") or [[units(event["text"]), event["num_tokens"]]]
    return parts


def origin_of(part: list[Any]) -> str:
    """How the tokens of a part came about."""
    return str(part[3]) if len(part) > 3 else "free"


def is_incomplete(item: Mapping[str, Any]) -> bool:
    """Whether a constrained generation ended before its text was whole."""
    ended = item["finish_reason"] not in (None, "stop") or item.get("cut", False)
    return item.get("constraint") is not None and ended


def limit_of(item: Mapping[str, Any]) -> str:
    """What ended a generation's text early, if anything did, in words."""
    limit = "stop string" if item.get("cut") else "token limit" if item["finish_reason"] == "length" else ""
    return f"incomplete: {limit}" if limit and is_incomplete(item) else limit


def kept_units(gen: Mapping[str, Any]) -> int:
    """How much of a generation's text is as it was in the one that its branch parts from, in UTF-16 units."""
    kept = itertools.takewhile(lambda part: origin_of(part) == "kept", gen["parts"])
    return sum(part[0] for part in kept)


def given_units(gen: Mapping[str, Any]) -> int:
    """The same with what was put there."""
    told = itertools.takewhile(lambda part: origin_of(part) in ("kept", "given"), gen["parts"])
    return sum(part[0] for part in told)


def untold(branch: Branch) -> str:
    """What was put where the branch parts, if it failed before its text says so; else ""."""
    said = any(
        origin_of(part) == "given" for item in branch["items"] if item["type"] == "gen" for part in item["parts"]
    )
    return "" if said or branch["status"] != "failed" else branch["given"] or ""


def merge_tokens(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same run in fewer events: token events of a branch that nothing else of the branch parts become one.

    Branches do not see each other's tokens, so pieces of one branch may be merged across another's. Events
    that tie branches together part them all.
    """
    merged: list[dict[str, Any]] = []
    last: dict[int, dict[str, Any]] = {}  # by branch: its token event that may still grow
    for event in events:
        if event["type"] != "tokens":
            if "branch" not in event or event["type"] == "branch":
                last.clear()
            else:
                last.pop(event["branch"], None)
            merged.append(event)
        elif (grown := last.get(event["branch"])) is not None:
            grown["text"] += event["text"]
            grown["num_tokens"] += event["num_tokens"]
            grown["parts"] += parts_of(event)
        else:
            last[event["branch"]] = event = {**event, "parts": list(parts_of(event))}
            merged.append(event)
    return merged
