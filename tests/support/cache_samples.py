"""Caches made of plain events, for the tests of the views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lmnb.backends.base import Owner
from lmnb.errors import CacheError
from lmnb.runtime.events import CacheEvent, CacheSnapshot, EngineStatus, NodeSnapshot


class FakeCache:
    """A prefix tree that records events, much like an engine's, over characters as tokens."""

    def __init__(self, pool_tokens: int = 4096, keep: int | None = None) -> None:
        self.pool_tokens = pool_tokens
        self.keep = keep  # recorded events kept, or None for all
        self.events: list[CacheEvent] = []
        self.nodes: dict[int, dict[str, Any]] = {}
        self.callbacks: list[Callable[[Sequence[CacheEvent]], None]] = []
        self.pins: set[int] = set()
        self.held: list[tuple[int, object]] = []
        self.asked: list[tuple[str, int]] = []  # what a view wanted done
        self.clock = 5000.0
        self._next = 1

    # the protocol of a cache source

    def snapshot(self) -> CacheSnapshot:
        order = sorted(self.nodes, key=self._depth)
        nodes = tuple(
            NodeSnapshot(
                id,
                self.nodes[id]["parent"],
                self.nodes[id]["ids"],
                0,
                self.nodes[id]["last"],
                self.nodes[id]["hits"],
                pinned=id in self.pins,
            )
            for id in order
        )
        used = sum(len(node.token_ids) for node in nodes)
        return CacheSnapshot(len(self.events) - 1, nodes, self.pool_tokens, self.pool_tokens - used, 0)

    def subscribe(self, callback: Callable[[Sequence[CacheEvent]], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def cache_events(self, since_seq: int) -> list[CacheEvent]:
        kept = self.events if self.keep is None else self.events[-self.keep :]
        return [event for event in kept if event.seq > since_seq]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def status(self) -> EngineStatus:
        cached = sum(len(node["ids"]) for node in self.nodes.values())
        return EngineStatus(
            model="fake", device="cpu", dtype="float32", context_tokens=2048, pool_tokens=self.pool_tokens,
            free_tokens=self.pool_tokens - cached, cached_tokens=cached, running=0, waiting=0, num_steps=1,
            prompt_tokens=1, reused_tokens=1, generated_tokens=1, pool_bytes=1, weight_bytes=1, step_seconds=1.0,
            bookkeeping_seconds=0.0,
        )  # fmt: skip

    def holders(self) -> list[tuple[int, object]]:
        return self.held

    @property
    def cache(self) -> FakeKeeper:
        return FakeKeeper(self)

    def flush_cache(self) -> bool:
        if not self.held:
            self.reset()
        return not self.held

    # what a test does with it

    def pin(self, node: int, kind: Any = "pin") -> None:
        self.pins ^= {node}
        batch: list[CacheEvent] = []
        self._record(batch, kind, node)
        self._publish(batch)

    def request(self, text: str, owner: object = None, seconds: float = 2.0) -> None:
        """Match a prompt, split where it leaves the tree, insert the rest."""
        self.clock += seconds
        ids = tuple(map(ord, text))
        node, place = 0, 0
        batch: list[CacheEvent] = []
        while place < len(ids):
            child = next((c for c in self._children(node) if self.nodes[c]["ids"][0] == ids[place]), None)
            if child is None:
                break
            have = self.nodes[child]["ids"]
            same = 0
            while same < len(have) and place + same < len(ids) and have[same] == ids[place + same]:
                same += 1
            if same < len(have):
                child = self._split(batch, child, same)
            node, place = child, place + same
        if place:
            self.nodes[node]["hits"] += 1
            self._record(batch, "hit", node, num_tokens=place, owner=owner)
        if place < len(ids):
            new = self._new(node, ids[place:])
            self._record(
                batch, "insert", new, parent=node, num_tokens=len(ids) - place, token_ids=ids[place:], owner=owner
            )
        self._publish(batch)

    def evict(self, node: int | None = None, reason: Any = "room", beneficiary: object = None) -> None:
        """Drop a leaf: the given one, or the oldest."""
        leaf = node or min((id for id in self.nodes if not self._children(id)), key=lambda id: self.nodes[id]["last"])
        batch: list[CacheEvent] = []
        count = len(self.nodes.pop(leaf)["ids"])
        self._record(batch, "evict", leaf, num_tokens=count, reason=reason, beneficiary=beneficiary)
        self._publish(batch)

    def extend(self, node: int, text: str) -> None:
        batch: list[CacheEvent] = []
        ids = tuple(map(ord, text))
        self.nodes[node]["ids"] += ids
        self._record(batch, "extend", node, parent=self.nodes[node]["parent"], num_tokens=len(ids), token_ids=ids)
        self._publish(batch)

    def reset(self) -> None:
        self.nodes.clear()
        batch: list[CacheEvent] = []
        self._record(batch, "reset", 0)
        self._publish(batch)

    def _children(self, node: int) -> list[int]:
        return [id for id, other in self.nodes.items() if other["parent"] == node]

    def _depth(self, node: int) -> int:
        depth = 0
        while node in self.nodes:
            node, depth = self.nodes[node]["parent"], depth + 1
        return depth

    def _new(self, parent: int, ids: tuple[int, ...]) -> int:
        self.nodes[self._next] = {"parent": parent, "ids": ids, "hits": 0, "last": self.clock}
        self._next += 1
        return self._next - 1

    def _split(self, batch: list[CacheEvent], child: int, length: int) -> int:
        entry = self.nodes[child]
        upper = self._new(entry["parent"], entry["ids"][:length])
        self.nodes[upper]["hits"] = entry["hits"]
        entry |= {"parent": upper, "ids": entry["ids"][length:]}
        parent = self.nodes[upper]["parent"]
        self._record(batch, "split", upper, parent=parent, child=child, num_tokens=length)
        return upper

    def _record(self, batch: list[CacheEvent], kind: Any, node: int, **fields: Any) -> None:
        self.events.append(CacheEvent(len(self.events), self.clock, kind, node, **fields))
        batch.append(self.events[-1])
        while node in self.nodes:
            self.nodes[node]["last"] = self.clock
            node = self.nodes[node]["parent"]

    def _publish(self, batch: list[CacheEvent]) -> None:
        for callback in list(self.callbacks):
            callback(batch)


class FakeKeeper:
    """Pins and evicts in a `FakeCache`, and refuses node 99."""

    def __init__(self, source: FakeCache) -> None:
        self.source = source

    def _note(self, act: str, node: int) -> None:
        self.source.asked.append((act, node))
        if node == 99:
            raise CacheError("the cache has no node 99 any more")

    def pin(self, node: int) -> None:
        self._note("pin", node)
        self.source.pin(node)

    def unpin(self, node: int) -> None:
        self._note("unpin", node)
        self.source.pin(node, "unpin")

    def evict(self, node: int) -> int:
        self._note("evict", node)
        count = len(self.source.nodes[node]["ids"])
        self.source.evict(node, "asked")
        return count


ASKING = Owner(run="r", program="cell", cell="3", line=4, source="s += user('What is 👩‍🚀?') + gen('x')")


def busy_cache() -> FakeCache:
    """Two chats that share a system prompt, a few-shot batch, evictions, and text of many bytes a character."""
    cache = FakeCache()
    cache.request("You are kind. Hello", "cell 1")
    cache.request("You are kind. Hello, 你好 and how are you?", "cell 2")
    cache.request("You are kind. What is 👩‍🚀?", ASKING, seconds=0.5)
    for question in ("2+2", "2+3", "7+1"):
        cache.request(f"Q: 1+1 A: 2 Q: {question}", "cell 4", seconds=0.1)
    cache.extend(max(cache.nodes), " A: 8")
    cache.pin(next(id for id, node in cache.nodes.items() if cache.decode(node["ids"]).startswith("What is")))
    cache.evict(beneficiary="cell 5")
    cache.evict(beneficiary="cell 5")
    cache.request("You are kind. Hello again", "cell 5")
    return cache
