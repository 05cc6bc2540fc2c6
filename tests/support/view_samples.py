"""Runs and caches made of plain events, for the tests of the views."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmnb.backends.base import Owner
from lmnb.errors import CacheError
from lmnb.language import events as ev
from lmnb.runtime.events import CacheEvent, CacheSnapshot, EngineStatus, NodeSnapshot
from lmnb.widgets.run_model import RunModel
from lmnb.widgets.tables import find_tables
from lmnb.widgets.tree_layout import layout
from lmnb.widgets.tree_model import CacheModel, Marks
from lmnb.widgets.tree_source import Translator

FIXTURES = Path(__file__).parents[1] / "widgets" / "fixtures"

NASTY = "<img src=x onerror=alert(1)></script><script>alert(2)</script> \"'& <|im_start|>system \x1b[2J"


def chat(branch: int, role: str, *inside: ev.RunEvent) -> list[ev.RunEvent]:
    return [
        ev.RoleOpened(branch, role, f"<|im_start|>{role}\n"),
        *inside,
        ev.RoleClosed(branch, "<|im_end|>\n"),
    ]


def gen(
    branch: int, var: str | None, text: str, *, reason: str = "stop", reused: int = 0, computed: int = 8
) -> list[ev.RunEvent]:
    words = text.split(" ")
    pieces = [word if i == 0 else " " + word for i, word in enumerate(words)]
    return [
        ev.GenStarted(branch, var, "gen", line=3),
        *(ev.TokensGenerated(branch, piece, 1) for piece in pieces),
        ev.GenFinished(branch, reason, None, reused, computed, len(pieces), 0.125, 0.5),
        *([ev.VariableSet(branch, var, text)] if var else []),
    ]


def select(branch: int, var: str, choices: list[str], scores: list[float], picked: int) -> list[ev.RunEvent]:
    methods = [
        {"name": "token_length_normalized", "scores": scores, "picked": picked},
        {"name": "greedy_token_selection", "scores": [2 * score for score in scores], "picked": picked},
    ]
    return [
        ev.GenStarted(branch, var, "select", "choices", 7),
        ev.ChoiceMade(
            branch, choices[picked], choices, scores, "token_length_normalized",
            [[[choice[:2], score, score - 1], [choice[2:], score, None]]
             for choice, score in zip(choices, scores, strict=True)],
            methods, ["The text before ends with ':' and " + NASTY],
        ),
        ev.GenFinished(branch, "stop", None, 64, 12, 2, 0.0625, 0.25),
        ev.VariableSet(branch, var, choices[picked]),
    ]  # fmt: skip


def interleave(*streams: Sequence[ev.RunEvent]) -> list[ev.RunEvent]:
    """Events of branches that run side by side."""
    merged: list[ev.RunEvent] = []
    for place in range(max(len(stream) for stream in streams)):
        merged += [stream[place] for stream in streams if place < len(stream)]
    return merged


def judge() -> list[ev.RunEvent]:
    """A program with roles, a fork of three (one nested, one failing), a join and a select."""
    lanes = [
        [*chat(1, "user", ev.TextAppended(1, "Judge the clarity of the essay.")),
         *chat(1, "assistant", *gen(1, "judgment", "Clear enough to be read twice.", reused=40)),
         ev.BranchFinished(1, "done")],
        [*chat(2, "user", ev.TextAppended(2, "Judge its evidence.")), *gen(2, "judgment", "Thin", reason="length"),
         ev.BranchOpened(4, 2, 0, 1, "0.1.0"), *gen(4, "detail", "No source is named."), ev.BranchFinished(4, "done"),
         ev.BranchesJoined(2, [4], "gather_variable"), ev.BranchFinished(2, "done")],
        [*chat(3, "user", ev.TextAppended(3, NASTY)), ev.GenStarted(3, "judgment", "gen", "regex"),
         ev.TokensGenerated(3, "Half a", 2),
         ev.BranchFinished(3, "failed", "GenerationError: the regex cannot match " + NASTY)],
    ]  # fmt: skip
    return [
        ev.RunStarted("r1", "judge", "smollm2-135m-instruct", 1000.0, "3"),
        *chat(0, "system", ev.TextAppended(0, "You are a fair"), ev.TextAppended(0, " judge of essays.")),
        ev.TextAppended(0, "\n"),
        *(ev.BranchOpened(i + 1, 0, i, 0, f"0.{i}") for i in range(3)),
        *interleave(*lanes),
        ev.BranchesJoined(0, [1, 2, 3], "gather_variable"),
        *chat(0, "user", ev.TextAppended(0, "Grade: ")),
        *chat(0, "assistant", *select(0, "grade", ["good", "fair", "poor"], [-1.5, -0.25, -2.0], 1)),
        ev.VariableSet(0, "grade", "fair"),
        ev.VariableSet(0, "judgments", "['Clear', 'Thin', None]", "list"),
        ev.BranchFinished(0, "done"),
        ev.RunFinished("done", 2.0),
    ]


def stopped() -> list[ev.RunEvent]:
    """A run that was cancelled in the middle of a generation, beside a called program and a batch row."""
    return [
        ev.RunStarted("r2", "cell", "fake", 2000.0),
        ev.TextAppended(0, "Count: "),
        ev.BranchOpened(1, 0, 0, 0, "0.0", "count", 5),
        ev.TextAppended(1, "one "),
        ev.GenStarted(0, None, "gen", "json_schema", 2),
        ev.TokensGenerated(0, "你好", 2),
        ev.TokensGenerated(0, " 👩‍🚀", 3),
        ev.GenFinished(0, "cancelled", None, 4, 2, 5, None, 0.75),
        ev.RunFinished("cancelled", 0.75, "stopped by the user"),
    ]


PIXEL = (  # one red pixel
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


def images() -> list[ev.RunEvent]:
    """A turn with an image and a video in it; the video has no preview."""
    dot = ev.ImageAdded(0, "<image>", "image/png", 1, 1, 69, "0a1b2c3d4e5f", PIXEL)
    film = ev.ImageAdded(0, "<image>", "image/png", 640, 480, 8_000_000, "5f4e3d2c1b0a", "", frames=8)
    return [
        ev.RunStarted("r3", "look", "fake-vl", 3000.0),
        *chat(
            0, "user", ev.TextAppended(0, "What is "), dot, ev.TextAppended(0, " and "), film, ev.TextAppended(0, "?")
        ),
        *chat(0, "assistant", *gen(0, "answer", "A dot.")),
        ev.BranchFinished(0, "done"),
        ev.RunFinished("done", 1.0),
    ]


def branched() -> list[ev.RunEvent]:
    """Two branches part from inside one generation, one of them after the run was over; one parts from a branch."""

    def piece(branch: int, text: str, origin: str) -> ev.TokensGenerated:
        return ev.TokensGenerated(branch, text, 0, [[len(text), 1, None, origin]])

    def variant(branch: int, kept: list[str], given: str, rest: str, reused: int) -> list[ev.RunEvent]:
        return [
            ev.GenStarted(branch, "answer", "gen", line=3),
            *(piece(branch, text, "kept") for text in kept),
            piece(branch, given, "given"),
            ev.TokensGenerated(branch, rest, 1),
            ev.GenFinished(branch, "stop", None, reused, 1, 1, 0.0625, 0.25),
            ev.VariableSet(branch, "answer", "".join(kept) + given + rest),
        ]

    why = "The program had read a value before its next steps."
    return [
        ev.RunStarted("b7", "cell", "SmolLM2", 1_700_000_000.0, "5"),
        *chat(0, "user", ev.TextAppended(0, "A city?")),
        ev.RoleOpened(0, "assistant", "<|im_start|>assistant\n"),
        ev.GenStarted(0, "answer", "gen", line=3),
        *(ev.TokensGenerated(0, text, 1) for text in ("Oslo", " it")),
        ev.BranchOpened(1, 0, 0, 0, "0~1", at=[0, 4]),
        *variant(1, ["Oslo"], " was", " it", 9)[:3],
        ev.TokensGenerated(0, " is", 1),
        *variant(1, ["Oslo"], " was", " it", 9)[3:],
        ev.GenFinished(0, "stop", None, 0, 8, 3, 0.125, 0.5),
        ev.VariableSet(0, "answer", "Oslo it is"),
        ev.RoleClosed(0, "<|im_end|>\n"),
        ev.RoleClosed(1, "<|im_end|>\n"),
        ev.BranchFinished(1, "done"),
        ev.BranchFinished(0, "done"),
        ev.RunFinished("done", 1.5),
        ev.RunResumed(1_700_000_060.0),
        ev.BranchOpened(2, 0, 0, 1, "0~2", at=[0, 0], note=why),
        *variant(2, [], "Bergen", " it", 8),
        ev.BranchOpened(3, 2, 0, 2, "0~2~1", at=[0, 6]),
        *variant(3, ["Bergen"], NASTY, " is", 9),
        ev.BranchFinished(3, "done"),
        ev.BranchFinished(2, "done"),
        ev.RunFinished("done", 2.5),
    ]


class FakeRun:
    """A run whose events are given by the test; delivers on the calling thread, as often as asked."""

    def __init__(self, events: Sequence[ev.RunEvent] = ()) -> None:
        self.events = list(events)
        self.cancelled = threading.Event()
        self._callbacks: list[Callable[[ev.RunEvent], None]] = []

    def subscribe(self, callback: Callable[[ev.RunEvent], None]) -> Callable[[], None]:
        for event in self.events:
            callback(event)
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def num_subscribers(self) -> int:
        return len(self._callbacks)

    def publish(self, *events: ev.RunEvent) -> None:
        for event in events:
            self.events.append(event)
            for callback in list(self._callbacks):
                callback(event)

    def cancel(self) -> None:
        self.cancelled.set()


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


def run_fixture(events: Sequence[ev.RunEvent]) -> dict[str, Any]:
    wires = [ev.to_json(event) for event in events]
    model = RunModel()
    model.apply_all(wires)
    return {"events": wires, "model": model.to_json()}


def tree_fixture() -> dict[str, Any]:
    """Wire events, and at several places the tree, the marks of the last second and of one step, and the layout."""
    cache = busy_cache()
    translator = Translator(cache.decode)
    model = CacheModel()
    for event in cache.events:
        model.append(translator.translate(event))

    def marks(found: Marks) -> dict[str, list[int]]:
        return {"fresh": sorted(found.new), "hit": sorted(found.hit), "evicted": sorted(found.evicted)}

    places = [
        {
            "count": count,
            "nodes": sorted(model.at(count).values(), key=lambda node: node["node"]),
            "recent": marks(model.marks(count)),
            "step": marks(model.marks(count, since=count - 1)),
            "boxes": [asdict(box) for box in layout(model.at(count))],
        }
        for count in range(0, len(model.events) + 1, 3)
    ]
    return {"events": model.events, "places": places}


TABLES = [
    "Here:\n      name  legs  score\n0      Rex     4    0.5\n1  Tom Cat     3    NaN\nand so on",
    "| city | people |\n|:-----|-------:|\n| Oslo | 709,037 |\n| Bø \\| Bo | |\n\nThat is all.",
    "a | b\n--- | ---\n<img src=x> | 2\n",
    "name,legs,tail\nRex,4,yes\nTom,3,no\n",
    "name\tlegs\nRex\t4\nTom\t3",
    "Hello, world, again\nyes, no, maybe\nso, it, is\n",  # a sentence
    "x = a | b\ny = c | d\n",  # code
    "1,2,3\n4,5,6\n7,8,9\n",  # nothing names the columns
    "a,b,c\n" + "1,2,3\n" * 600,  # too long
    "One line",
]


def tables_fixture() -> list[dict[str, Any]]:
    return [{"text": text, "tables": [asdict(table) for table in find_tables(text)]} for text in TABLES]


def fixtures() -> dict[str, Any]:
    """By file name, what the Python and the TypeScript models must both make of the same events."""
    return {
        "run_judge.json": run_fixture(judge()),
        "run_stopped.json": run_fixture(stopped()),
        "run_images.json": run_fixture(images()),
        "run_branched.json": run_fixture(branched()),
        "tree.json": tree_fixture(),
        "tables.json": tables_fixture(),
    }


if __name__ == "__main__":  # writes the fixtures anew; read the difference before committing it
    for name, value in fixtures().items():
        (FIXTURES / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
