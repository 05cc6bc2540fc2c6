"""Turns an engine's cache events into the view's wire form: token ids become texts, owners become labels.

It keeps each node's token ids, because the text of a split node is that of its tokens, not of half its characters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lmnb.runtime.events import CacheEvent, CacheSnapshot, EngineStatus, owner_label
from lmnb.widgets.escape import cut
from lmnb.widgets.tree_model import Node

TEXT_LIMIT = 3000  # characters of a node's text that a view gets
SOURCE_LIMIT = 200  # characters of the line that made a node
MOST_OWNERS = 3  # that are named where several requests hold a node


class CacheKeeper(Protocol):
    """What a view lets people do to a node. All raise an LmnbError that says why not."""

    def pin(self, node: int, /) -> object:
        """Keep it, and all above it."""
        ...

    def unpin(self, node: int, /) -> object:
        """Take that back."""
        ...

    def evict(self, node: int, /) -> int:
        """Give up it and all below it; how many tokens that were."""
        ...


class CacheSource(Protocol):
    """What a cache view needs of an engine; the local `Runtime` is one. Callbacks may come on any thread."""

    def snapshot(self) -> CacheSnapshot:
        """The tree as it is now."""
        ...

    def subscribe(self, callback: Callable[[Sequence[CacheEvent]], None], /) -> Callable[[], None]:
        """Call back with each batch of new events; returns what ends that."""
        ...

    def cache_events(self, since_seq: int, /) -> list[CacheEvent]:
        """The recorded events after number `since_seq`; the oldest may no longer be kept."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of tokens."""
        ...

    def status(self) -> EngineStatus:
        """Counters of the engine."""
        ...

    def holders(self) -> list[tuple[int, object]]:
        """Of each running request: the node up to which it holds the tree, and its owner."""
        ...

    def flush_cache(self) -> bool:
        """Forget what is not pinned; False if requests are running."""
        ...

    @property
    def cache(self) -> CacheKeeper:
        """Pins and evicts nodes."""
        ...


class Translator:
    """Follows the tree's token ids. `seq` is the number of the last event it has seen."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: dict[int, tuple[int, ...]] = {}
        self.seq = -1

    def rebase(self, snapshot: CacheSnapshot) -> list[Node]:
        """Start again from `snapshot`; its nodes in wire form."""
        self._ids = {node.node: node.token_ids for node in snapshot.nodes}
        self.seq = snapshot.seq
        return [
            {
                "node": node.node,
                "parent": node.parent,
                "num_tokens": len(node.token_ids),
                "text": self._text(node.token_ids),
                "hits": node.hits,
                "pinned": node.pinned,
                "owner": owner_label(node.owner),
                "source": owner_source(node.owner),
                "last": node.last_access,
            }
            for node in snapshot.nodes
        ]

    def translate(self, event: CacheEvent) -> dict[str, Any]:
        """The event in wire form. KeyError if it speaks of a node that was never seen."""
        wire: dict[str, Any] = {
            "seq": event.seq,
            "time": event.time,
            "kind": event.kind,
            "node": event.node,
            "num_tokens": event.num_tokens or len(event.token_ids),
            "owner": owner_label(event.owner),
        }
        if event.kind in ("insert", "extend"):
            ids = event.token_ids if event.kind == "insert" else self._ids[event.node] + event.token_ids
            self._ids[event.node] = ids
            wire |= {"parent": event.parent, "num_tokens": len(event.token_ids), "text": self._text(ids)}
            if event.kind == "insert":
                wire["source"] = owner_source(event.owner)
        elif event.kind == "split":
            ids = self._ids[event.child]
            upper, lower = ids[: event.num_tokens], ids[event.num_tokens :]
            self._ids[event.node], self._ids[event.child] = upper, lower
            wire |= {"parent": event.parent, "child": event.child}
            wire |= {"text": self._text(upper), "child_text": self._text(lower)}
        elif event.kind == "evict":
            del self._ids[event.node]
            wire |= {"reason": event.reason or "room", "for": owner_label(event.beneficiary)}
        elif event.kind == "reset":
            self._ids.clear()
        self.seq = event.seq
        return wire

    def _text(self, ids: Sequence[int]) -> str:
        head, missing, tail = cut(self._decode(ids), TEXT_LIMIT)
        return f"{head} … {missing:,} more characters … {tail}" if missing else head


def owner_source(owner: object) -> str:
    """The line of the program that caused an event, if its owner knows it; of a long one, the beginning."""
    source = getattr(owner, "source", None)
    if not isinstance(source, str):
        return ""
    return source if len(source) <= SOURCE_LIMIT else source[: SOURCE_LIMIT - 1] + "…"


def pool_state(status: EngineStatus, holders: Sequence[tuple[int, object]] = ()) -> dict[str, Any]:
    """The gauge beside the tree, and the kernel's time, which ages are counted to.

    `held`: for each node that ends what running requests hold, their number and the first of their owners.
    """
    held: dict[int, list[Any]] = {}
    for node, owner in holders:
        entry = held.setdefault(node, [0])
        entry[0] += 1
        if len(entry) <= MOST_OWNERS and (label := owner_label(owner)) not in entry:
            entry.append(label)
    return {
        "now": time.time(),
        "held": [[node, *entry] for node, entry in held.items()],
        "pool_tokens": status.pool_tokens,
        "free_tokens": status.free_tokens,
        "cached_tokens": status.cached_tokens,
        "pinned_tokens": status.pinned_tokens,
        "running": status.running,
        "waiting": status.waiting,
        "token_bytes": status.pool_bytes // max(1, status.pool_tokens),
    }
