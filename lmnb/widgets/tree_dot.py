"""The cache tree in DOT, graphviz's language: a box a node, told apart by sign and outline as in the other pictures."""

from __future__ import annotations

import json

from lmnb.widgets.escape import plain
from lmnb.widgets.tree_model import Marks, Tree, counted
from lmnb.widgets.tree_svg import flag, state_of

LONGEST = 40  # characters of a node's text
_STYLES = {
    "kept": 'color="#808890"',
    "hit": 'color="#c98a00", penwidth=2',
    "new": 'color="#009e73", style=dashed',
    "evicted": 'color="#d55e00", style=dotted',
}


def to_dot(tree: Tree, marks: Marks | None = None) -> str:
    """The DOT text. Nodes are called by their numbers in the tree; the root has no box of tokens."""
    marks = marks or Marks()
    nodes = {**marks.evicted, **tree}
    lines = ["digraph cache {", '  rankdir=LR; node [shape=box, fontname="monospace"];', "  root [shape=point];"]
    for id, node in sorted(nodes.items()):
        state, sign = state_of(id, marks)
        words = " ".join(plain(node["text"]).split())
        text = words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"
        hits = f", {counted(node['hits'], 'hit')}" if node["hits"] else ""
        label = f"{flag(node)}{sign}{counted(node['num_tokens'], 'token')}{hits}\n{text}"
        lines.append(f"  n{id} [label={json.dumps(label, ensure_ascii=False)}, {_STYLES[state]}];")
        parent = f"n{node['parent']}" if node["parent"] in nodes else "root"
        lines.append(f"  {parent} -> n{id};")
    return "\n".join([*lines, "}"])
