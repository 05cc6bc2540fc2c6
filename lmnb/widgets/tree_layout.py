"""Where the nodes of a prefix tree go in an icicle: x by tokens from the root, y by branches.

`src/tree_layout.ts` is the same layout. Units are tokens and rows (one row a leaf); a drawing scales them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lmnb.widgets.tree_model import Node


@dataclass(frozen=True)
class Box:
    """One node's place."""

    node: int
    start: int  # tokens from the root to the node's first token
    end: int
    depth: int  # nodes above it, the root not counted
    row: int
    rows: int


def layout(nodes: Mapping[int, Node]) -> list[Box]:
    """Boxes in drawing order, parents first.

    Children are ordered by the smallest id below them, which a split does not change, so boxes keep their
    place. A node whose parent is not there hangs from the root.
    """
    children: dict[int, list[int]] = {}
    for node in nodes.values():
        parent = node["parent"] if node["parent"] in nodes else 0
        children.setdefault(parent, []).append(node["node"])
    order = _top_down(children)
    smallest: dict[int, int] = {}
    rows: dict[int, int] = {}
    for id in reversed(order):
        below = children.get(id, [])
        smallest[id] = min([id, *(smallest[child] for child in below)])
        rows[id] = sum(rows[child] for child in below) or 1
    boxes: dict[int, Box] = {}
    stack = [(0, 0, 0, -1)]
    while stack:
        id, start, row, depth = stack.pop()
        end = start
        if id:
            end = start + nodes[id]["num_tokens"]
            boxes[id] = Box(id, start, end, depth, row, rows[id])
        for child in sorted(children.get(id, []), key=lambda child: smallest[child]):
            stack.append((child, end, row, depth + 1))
            row += rows[child]
    return sorted(boxes.values(), key=lambda box: (box.depth, box.row))


def _top_down(children: Mapping[int, list[int]]) -> list[int]:
    order = list(children.get(0, []))
    for id in order:  # grows while it is read
        order.extend(children.get(id, []))
    return order
