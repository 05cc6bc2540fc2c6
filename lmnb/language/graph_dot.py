"""A graph in DOT: a column for each stream, solid arrows in order, dashed ones where a variable is used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmnb.language.expressions import Select
from lmnb.language.graph import Append, Call, Fork, Graph, Join, Op, describe
from lmnb.language.placeholders import VariableRef

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST = 60
_SHAPES = {"gen": "box", "select": "box", "fork": "triangle", "join": "invtriangle"}


def to_dot(graph: Graph) -> str:
    """The graph's DOT text."""
    return "\n".join([f"digraph {json.dumps(graph.name)} {{", *_Drawing(graph).lines(), "}"])


class _Drawing:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._last = {0: "start"}  # each stream's latest node
        self._sets: dict[tuple[int, str], str] = {}  # the node that sets a variable

    def lines(self) -> Iterator[str]:
        yield '  node [shape=plaintext, fontname="monospace"];'
        yield f"  start [label={json.dumps(self._graph.name)}, shape=oval];"
        for number, op in enumerate(self._graph.ops):
            node = f"n{number}"
            text = describe(op)
            shape = _SHAPES.get(text.partition(" ")[0], "plaintext")
            label = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
            yield f"  {node} [label={json.dumps(label, ensure_ascii=False)}, shape={shape}];"
            yield f"  {self._last[op.stream]} -> {node};"
            yield from self._uses(op, node)
            self._move(op, node)

    def _uses(self, op: Op, node: str) -> Iterator[str]:
        if isinstance(op, Join):
            for child in op.children:
                yield f"  {self._last[child]} -> {node};"
        for ref in _refs(op):
            source = self._sets.get((ref.stream, ref.name))
            if source is not None:
                yield f"  {source} -> {node} [style=dashed, label={json.dumps(ref.name)}];"

    def _move(self, op: Op, node: str) -> None:
        self._last[op.stream] = node
        if isinstance(op, Fork):
            self._last.update(dict.fromkeys(op.children, node))
        elif isinstance(op, Call):
            self._last[op.child] = node
        name = getattr(op.node, "name", None) if isinstance(op, Append) else getattr(op, "name", None)
        if isinstance(name, str) and not (isinstance(op, Append) and isinstance(op.node, VariableRef)):
            self._sets[op.stream, name] = node


def _refs(op: Op) -> Iterator[VariableRef]:
    if not isinstance(op, Append):
        return
    node = op.node
    candidates = node.choices if isinstance(node, Select) and isinstance(node.choices, tuple) else (node,)
    for candidate in candidates:
        if isinstance(candidate, VariableRef):
            yield candidate
