"""What changed since the last run of the same cell or program: the first place in each branch's prompt, and why.

Compares texts that views hold anyway. Knows nothing of engines: what was cached is what a call says it reused.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from lmnb.language.events import image_label
from lmnb.language.token_parts import units
from lmnb.widgets.run_model import Branch, RunModel

Place = tuple[int, ...]  # a branch: for each fork on the way to it, the fork's place in its parent and the index
Key = tuple[str, str]  # ("cell", the front end's id of it) or ("program", name)

MOST_RUNS = 32
MOST_CHARACTERS = 4_000_000  # of all kept runs together
EXCERPT = 28
LOOK_BACK = 2000  # characters in which the end of a change is looked for
_TURN = re.compile(r"<\|")
_ALWAYS_COMPUTED = 2  # a prompt's last token is computed even if all of it is cached


@dataclass
class Trail:
    """One branch's own text: what it said since its fork, up to its last finished generation."""

    text: str = ""
    num_items: int = 0  # of the branch that are in `text`
    changed: tuple[int, int, str] | None = None  # item, offset in it, why
    told: bool = False
    lost: bool = False  # a generation was told of whose prompt is the same and was no longer cached


@dataclass
class Past:
    """A run that is over."""

    trails: dict[Place, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Characters kept."""
        return sum(map(len, self.trails.values()))


class History:
    """The last run of each cell and program in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[Key, Past] = OrderedDict()

    def find(self, key: Key) -> Past | None:
        """The last run, if it is kept."""
        with self._lock:
            return self._runs.get(key)

    def keep(self, key: Key, past: Past) -> None:
        """Remember a run in place of the one before; forget the oldest ones that are too much."""
        with self._lock:
            self._runs[key] = past
            self._runs.move_to_end(key)
            while len(self._runs) > MOST_RUNS or sum(run.size for run in self._runs.values()) > MOST_CHARACTERS:
                self._runs.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._runs.clear()


history = History()


class Comparison:
    """Follows one run beside the last one of the same program, or of the same cell.

    `cell`: the front end's id of the cell, which stays when the cell is edited; None where it tells none, and then a
    cell's own run is not compared.
    """

    def __init__(self, cell: str | None, past_runs: History = history) -> None:
        self._cell = cell
        self._history = past_runs
        self._key: Key | None = None
        self._past: Past | None = None
        self._trails: dict[int, Trail] = {}
        self._places: dict[int, Place] = {}

    def look(self, model: RunModel, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Events that tell of changes, to come behind `events`, which `model` has already."""
        found: list[dict[str, Any]] = []
        if any(event["type"] == "run" for event in events):
            self._key = self._key_of(model)
            self._past = None if self._key is None else self._history.find(self._key)
            found += [{"type": "rerun"}] if self._past is not None else []
        if self._key is None:
            return []
        for id in dict.fromkeys(event["branch"] for event in events if event["type"] == "gen_end"):
            if not _is_variant(model, id):
                found += self._follow(model, model.branches[id])
        if model.ended:
            self._history.keep(self._key, Past({self._place(model, id): t.text for id, t in self._trails.items()}))
            self._key = None
        return found

    def _key_of(self, model: RunModel) -> Key | None:
        program = model.head["program"]
        if program != "cell":
            return "program", program
        return None if self._cell is None else ("cell", self._cell)

    def _follow(self, model: RunModel, branch: Branch) -> list[dict[str, Any]]:
        """Read what the branch has said up to its last finished generation."""
        trail = self._trails.setdefault(branch["id"], Trail())
        old = None if self._past is None else self._past.trails.get(self._place(model, branch["id"]))
        items = branch["items"]
        last = max(i for i, item in enumerate(items) if item["type"] == "gen" and item["status"] != "running")
        found = []
        for index in range(trail.num_items, last + 1):
            item = items[index]
            if old is not None and item["type"] == "gen":
                found += self._judge(model, branch, trail, index)
            text = _text_of(item)
            if old is not None and trail.changed is None and not old.startswith(text, len(trail.text)):
                trail.changed = (index, *_difference(item["type"], old[len(trail.text) :], text))
            trail.text += text
        trail.num_items = last + 1
        return found

    def _judge(self, model: RunModel, branch: Branch, trail: Trail, index: int) -> list[dict[str, Any]]:
        """A generation's prompt is complete: say where it first differed, once a branch and not again below it."""
        gen = branch["items"][index]
        above = self._above(model, branch)
        reuse = f"{gen['reused']:,} of {gen['reused'] + gen['computed']:,} prompt tokens were reused"
        if trail.told or any(other.changed is not None for other in above if other is not trail):
            return []
        if trail.changed is not None:
            trail.told = True
            item, at, why = trail.changed
            return [{"type": "mark", "branch": branch["id"], "item": item, "at": at, "why": f"{why} · {reuse}"}]
        lost = gen["kind"] == "gen" and gen["computed"] > _ALWAYS_COMPUTED
        if lost and not any(other.lost for other in above):
            trail.lost = True
            why = f"The same prompt as in the last run, and not all of it in the cache: evicted or flushed · {reuse}"
            return [{"type": "mark", "branch": branch["id"], "item": index, "at": None, "why": why}]
        return []

    def _above(self, model: RunModel, branch: Branch) -> list[Trail]:
        """The trails of the branch and of those above it."""
        found: list[Trail] = []
        id: int | None = branch["id"]
        while id is not None:
            if (trail := self._trails.get(id)) is not None:
                found.append(trail)
            id = model.branches[id]["parent"]
        return found

    def _place(self, model: RunModel, id: int) -> Place:
        known = self._places.get(id)
        if known is None:
            branch = model.branches[id]
            parent = branch["parent"]
            known = ()
            if parent is not None:
                forks = [item["fork"] for item in model.branches[parent]["items"] if item["type"] == "fork"]
                known = (*self._place(model, parent), forks.index(branch["fork"]), branch["index"])
            self._places[id] = known
        return known


def _is_variant(model: RunModel, id: int | None) -> bool:
    """Whether a reader has made the branch, or one above it, out of another: a rerun has no such branch."""
    while id is not None:
        if model.branches[id]["at"] is not None:
            return True
        id = model.branches[id]["parent"]
    return False


def _text_of(item: dict[str, Any]) -> str:
    if item["type"] == "image":  # what stands for it is the same for every image
        label = image_label(item["mime"], item["width"], item["height"], item["frames"])
        return f"{label[:-1]} #{item['digest']}]"
    field_of = {"role": "prefix", "role_end": "suffix", "text": "text", "gen": "text"}.get(item["type"])
    return str(item[field_of]) if field_of else ""


_WHAT = {
    "text": "The program's text",
    "gen": "The generated text",
    "role": "The role",
    "role_end": "The end of the turn",
}


def _difference(kind: str, old: str, new: str) -> tuple[int, str]:
    """Where in `new` it differs from how `old` begins (in UTF-16 units), and a sentence about it."""
    same = _common_length(old, new)
    at = units(new[:same])
    if same == len(old):
        return at, "The last run ended here; what follows is new"
    if kind == "image":
        return 0, "In the last run another image, or none, stood here"
    before, after = _changed_words(old[same:], new[same:])
    return at, f"{_WHAT[kind]} changed here: “{_excerpt(before)}” became “{_excerpt(after)}”"


def _common_length(a: str, b: str) -> int:
    """Characters that both begin with, found by halving: texts may have millions."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _changed_words(old: str, new: str) -> tuple[str, str]:
    """Without what both end with, as far as whole words go; `old` may go on past the turn that `new` is of."""
    before, after = _TURN.split(old[:LOOK_BACK])[0], new[:LOOK_BACK]
    same = _common_length(before[::-1], after[::-1])
    while same and not before[len(before) - same].isspace():
        same -= 1
    before, after = before[: len(before) - same], after[: len(after) - same]
    return (before, after) if before.strip() and after.strip() else (old, new)


def _excerpt(text: str) -> str:
    text = text[: 4 * EXCERPT]
    text = " ".join((_TURN.split(text)[0] or text).split())  # up to the end of the turn
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
