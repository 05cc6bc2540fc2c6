"""After each of the nine steps the engine's own tree has the shape that the notebook tells, and that the paper has.

A node is named by the prompts' pieces that it holds, in order: `"system prompt + hello"`. A shape is
`{name: {children}}`. Generated text names nothing, so shapes do not depend on what the model says.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PIECES = {
    "system prompt": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>",
    "hello": "Hello!<|im_end|>",
    "bees": "I read this about bees.",
    "dance": "Thank you! How do they dance?<|im_end|>",
    "fox": "Tell me a story about a fox.<|im_end|>",
    "moral": "What is the moral of the story?<|im_end|>",
    "examples": "Question: What do bees make?",
    "hedgehogs": "When do hedgehogs sleep?\n",
    "penguins": "Where do penguins live?\n",
    "fish": "How do fish breathe?\n",
    "second answer": "Second answer:",
    "third answer": "Third answer:",
    "fourth answer": "Fourth answer:",
}
FIRST_ANSWER = "first answer"  # what is left of a question's node below the question

CHATS: dict[str, Any] = {"system prompt": {"hello": {}, "fox": {"moral": {}}}}
FIRST_CHAT: dict[str, Any] = {"system prompt": {"hello": {"bees + dance": {}}}}
SHAPES: dict[int, dict[str, Any]] = {
    1: {},
    2: {"system prompt + hello": {}},
    3: {"system prompt + hello": {"bees": {}}},
    4: {"system prompt": {"hello": {"bees": {}}, "fox": {}}},
    5: CHATS,
    6: {**CHATS, "examples + hedgehogs": {}},
    7: {**CHATS, "examples": {"hedgehogs": {}, "penguins": {}, "fish": {}}},
    8: {**FIRST_CHAT, "examples": {"hedgehogs": {}, "penguins": {}, "fish": {}}},
    9: {**FIRST_CHAT, "examples": {"penguins": {"second answer": {}, "third answer": {}, "fourth answer": {}}}},
}
# Events of each step: nodes that were hit, new upper halves of splits, new nodes; each in any order.
HITS = {
    3: ["system prompt + hello"],
    4: ["system prompt"],
    5: ["fox"],
    7: ["examples"] * 3,  # what a batch's rows have in common is asked for once, before them
    8: ["hello"],
    9: ["penguins"] * 4,
}
SPLITS = {4: ["system prompt"], 7: ["examples"], 9: ["penguins"]}
INSERTS = {
    2: ["system prompt + hello"],
    3: ["bees"],
    4: ["fox"],
    5: ["moral"],
    6: ["examples + hedgehogs"],
    7: ["penguins", "fish"],
    8: ["bees + dance"],
    9: ["second answer", "third answer", "fourth answer"],
}
# In the order of eviction: the least recently used first.
EVICTIONS = {5: ["bees"], 8: ["moral", "fox"]}
LAST_EVICTIONS = {"hedgehogs", "fish", FIRST_ANSWER}  # the batch's two rows may end in either order

SETUP = """
_seen, _held = -1, {}


def _observe():
    global _seen
    runtime._engine().check_integrity()
    snapshot = runtime.snapshot()
    events = []
    for event in runtime.cache_events(_seen + 1):
        if event.kind in ("insert", "extend"):
            _held[event.node] = _held.get(event.node, ()) + event.token_ids
        elif event.kind == "split":
            ids = _held[event.child]
            _held[event.node], _held[event.child] = ids[: event.num_tokens], ids[event.num_tokens :]
        events.append([event.kind, event.num_tokens, runtime.decode(_held[event.node])])
    assert all(node.token_ids == _held[node.node] for node in snapshot.nodes), "events and tree differ"
    _seen = snapshot.seq
    return {
        "nodes": [[n.node, n.parent, len(n.token_ids), runtime.decode(n.token_ids)] for n in snapshot.nodes],
        "events": events,
        "pool": [snapshot.pool_tokens, snapshot.free_tokens, snapshot.locked_tokens],
    }
"""
DRAWN = {step: f"step-{step}" if step in (6, 7, 9) else f"step-{step}-draw" for step in SHAPES}


def name_of(text: str) -> str:
    """The pieces that a node's text holds, in order."""
    found = sorted((text.index(piece), name) for name, piece in PIECES.items() if piece in text)
    if not found and text.startswith("Answer:"):
        return FIRST_ANSWER
    assert found, f"a node that holds none of the pieces: {text!r}"
    return " + ".join(name for _, name in found)


def shape_of(nodes: list[list[Any]], parent: int = 0) -> dict[str, Any]:
    """The nodes below `parent`, by name."""
    below = [(id, name_of(text)) for id, above, _, text in nodes if above == parent]
    assert len({name for _, name in below}) == len(below), f"two nodes of one name: {below}"
    return {name: shape_of(nodes, id) for id, name in below}


def sketched(markdown: str) -> dict[str, Any]:
    """The shape that a cell's text block draws."""
    shape: dict[str, Any] = {}
    path = [shape]
    for line in markdown.split("```text\nroot\n")[1].split("\n```")[0].splitlines():
        drawn, name = line[: len(line) - len(line.lstrip("│├└─ "))], line.lstrip("│├└─ ")
        depth = len(drawn) // 4
        del path[depth:]
        path[depth - 1][name] = {}
        path.append(path[depth - 1][name])
    return shape


@pytest.fixture(scope="module")
def found(run_probed: Any) -> dict[int, Any]:
    """What the kernel held after each step."""
    ran = run_probed("radix_tree.ipynb", dict.fromkeys(DRAWN.values(), "_observe()"), SETUP)
    return {step: ran.found[id] for step, id in DRAWN.items()}


def names(step: Any, kind: str) -> list[str]:
    return [name_of(text) for event, _, text in step["events"] if event == kind]


@pytest.mark.parametrize("step", SHAPES)
def test_the_tree_has_the_shape_of_the_figure(found: dict[int, Any], step: int) -> None:
    assert shape_of(found[step]["nodes"]) == SHAPES[step]


@pytest.mark.parametrize("step", [step for step in SHAPES if step > 1])
def test_the_text_draws_that_shape(notebooks: dict[str, Any], step: int) -> None:
    (cell,) = [cell for cell in notebooks["radix_tree.ipynb"].cells if cell.id == f"step-{step}-text"]
    assert sketched(cell.source) == SHAPES[step]


@pytest.mark.parametrize("step", SHAPES)
def test_what_happened_on_the_way(found: dict[int, Any], step: int) -> None:
    assert sorted(names(found[step], "hit")) == sorted(HITS.get(step, []))
    assert sorted(names(found[step], "split")) == sorted(SPLITS.get(step, []))
    assert sorted(names(found[step], "insert")) == sorted(INSERTS.get(step, []))
    evicted = names(found[step], "evict")
    if step == max(SHAPES):
        assert evicted[0] == "hedgehogs"
        assert set(evicted) == LAST_EVICTIONS
        assert len(evicted) == len(LAST_EVICTIONS)
    else:
        assert evicted == EVICTIONS.get(step, [])


@pytest.mark.parametrize("step", SHAPES)
def test_every_slot_is_accounted_for(found: dict[int, Any], step: int) -> None:
    pool, free, locked = found[step]["pool"]
    assert locked == 0
    assert free + sum(num_tokens for _, _, num_tokens, _ in found[step]["nodes"]) == pool


def test_a_hit_saves_the_whole_path(found: dict[int, Any]) -> None:
    """The second turn of each chat reuses all of its first, the answer included (less its last token)."""
    for step, before in ((3, 2), (5, 4)):
        (hit,) = [num_tokens for kind, num_tokens, _ in found[step]["events"] if kind == "hit"]
        by_id = {id: (parent, num_tokens) for id, parent, num_tokens, _ in found[before]["nodes"]}
        (id,) = [id for id, _, _, text in found[before]["nodes"] if name_of(text) == HITS[step][0]]
        length = 0
        while id:
            id, num_tokens = by_id[id][0], by_id[id][1]
            length += num_tokens
        assert hit == length
