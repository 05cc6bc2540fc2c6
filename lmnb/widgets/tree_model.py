"""The cache tree at any recorded moment: a base tree and the events since. `src/tree_model.ts` is the same model.

Takes events in the wire form that `tree_source.py` makes (texts instead of token ids). Draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

Wire = Mapping[str, Any]
CHECKPOINT = 256  # events between kept states: what a scrub replays at most
RECENT = 1.0  # seconds: events this close to the newest are drawn as just happened


class Node(TypedDict):
    """One node. Never changed in place: states share nodes."""

    node: int
    parent: int
    num_tokens: int
    text: str
    hits: int
    pinned: bool  # itself; a pin holds the nodes above as well
    owner: str
    source: str  # the line of the program that made it, where that is known
    last: float  # seconds, time.time()


Tree = dict[int, Node]  # by id, without the root


def step(tree: Tree, event: Wire) -> None:
    """Apply one event to `tree`."""
    kind, id = event["kind"], event["node"]
    if kind == "insert":
        tree[id] = {
            "node": id,
            "parent": event["parent"],
            "num_tokens": event["num_tokens"],
            "text": event["text"],
            "hits": 0,
            "pinned": False,
            "owner": event["owner"],
            "source": event["source"],
            "last": event["time"],
        }
    elif kind == "extend":
        node = tree[id]
        tree[id] = {
            **node,
            "num_tokens": node["num_tokens"] + event["num_tokens"],
            "text": event["text"],
            "last": event["time"],
        }
    elif kind == "hit":
        if id in tree:
            tree[id] = {**tree[id], "hits": tree[id]["hits"] + 1}
        while id in tree:
            tree[id] = {**tree[id], "last": event["time"]}
            id = tree[id]["parent"]
    elif kind == "split":
        child, length = tree[event["child"]], event["num_tokens"]
        upper = {"node": id, "parent": event["parent"], "num_tokens": length, "text": event["text"], "pinned": False}
        tree[id] = cast(Node, {**child, **upper})
        tree[child["node"]] = {
            **child,
            "parent": id,
            "num_tokens": child["num_tokens"] - length,
            "text": event["child_text"],
        }
    elif kind == "evict":
        del tree[id]
    elif kind == "reset":
        tree.clear()
    elif kind in ("pin", "unpin"):
        tree[id] = {**tree[id], "pinned": kind == "pin"}
    else:
        raise KeyError(kind)


@dataclass
class Marks:
    """What just happened, for the drawing: `evicted` nodes are no longer in the tree, but are still shown."""

    new: set[int] = field(default_factory=set)
    hit: set[int] = field(default_factory=set)
    evicted: Tree = field(default_factory=dict)


class CacheModel:
    """`base` is the tree after event `base_seq` (-1: an empty tree); `events` are those since, oldest first."""

    def __init__(self, base: Iterable[Node] = (), base_seq: int = -1, *, limit: int = 5000) -> None:
        self.base: Tree = {node["node"]: node for node in base}
        self.base_seq = base_seq
        self.events: list[Wire] = []
        self.limit = limit
        self.head: Tree = dict(self.base)
        self._checkpoints: list[Tree] = [dict(self.base)]

    @property
    def seq(self) -> int:
        """Number of the last event applied."""
        return self.base_seq + len(self.events)

    def append(self, event: Wire) -> None:
        """Apply the next event. ValueError if it is not the next one."""
        if event["seq"] != self.seq + 1:
            raise ValueError(f"event {event['seq']} after {self.seq}")
        step(self.head, event)
        self.events.append(event)
        if len(self.events) % CHECKPOINT == 0:
            self._checkpoints.append(dict(self.head))
        if len(self.events) >= self.limit + max(CHECKPOINT, self.limit // 4):
            self._forget(len(self.events) - self.limit)

    def at(self, count: int) -> Tree:
        """The tree after the first `count` of `events`."""
        count = max(0, min(count, len(self.events)))
        index = count // CHECKPOINT
        tree = dict(self._checkpoints[index])
        for event in self.events[index * CHECKPOINT : count]:
            step(tree, event)
        return tree

    def marks(self, count: int | None = None, since: int | None = None) -> Marks:
        """What happened in the events `since` .. `count`; by default in the last second before the last of them."""
        count = len(self.events) if count is None else max(0, min(count, len(self.events)))
        if since is None:
            since = count
            while since > 0 and self.events[since - 1]["time"] >= self.events[count - 1]["time"] - RECENT:
                since -= 1
        return self._marks(max(0, since), count)

    def _marks(self, since: int, count: int) -> Marks:
        marks = Marks()
        tree = self.at(since)
        for event in self.events[since:count]:
            kind, id = event["kind"], event["node"]
            if kind == "evict":
                marks.evicted[id] = tree[id]
            elif kind == "reset":
                marks.evicted.update(tree)
            step(tree, event)
            if kind in ("insert", "extend") or (kind == "split" and event["child"] in marks.new):
                marks.new.add(id)
            elif kind == "hit":
                while id in tree:
                    marks.hit.add(id)
                    id = tree[id]["parent"]
        marks.new &= tree.keys()
        marks.hit &= tree.keys() - marks.new
        return marks

    def to_json(self) -> dict[str, Any]:
        """The base and the events since: all that a timeline needs."""
        return {"base": list(self.base.values()), "base_seq": self.base_seq, "events": list(self.events)}

    def _forget(self, count: int) -> None:
        """Make the first `count` events part of the base."""
        count -= count % CHECKPOINT
        if count <= 0:
            return
        self._checkpoints = self._checkpoints[count // CHECKPOINT :]
        self.base = dict(self._checkpoints[0])
        self.base_seq += count
        del self.events[:count]


def counted(number: int, noun: str) -> str:
    """`1 token`, `1,200 tokens`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
