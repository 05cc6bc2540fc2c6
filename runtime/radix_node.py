"""One node of the radix cache's tree."""

from __future__ import annotations

from lmnb.runtime.kv_pool import Slots
from lmnb.runtime.prefix_cache import Tokens


class RadixNode:
    """One edge of the tree with the node below it: `tokens[i]` has its KV in `slots[i]`. (They are keys: see
    `SeamKeys`.)"""

    __slots__ = (
        "children",
        "end",
        "hits",
        "id",
        "last_access",
        "locks",
        "owner",
        "parent",
        "pinned",
        "pins",
        "slots",
        "tick",
        "tokens",
    )

    def __init__(self, id: int, parent: RadixNode | None, tokens: Tokens, slots: Slots, owner: object) -> None:
        self.id = id
        self.parent = parent
        self.tokens = tokens
        self.slots = slots
        self.owner = owner
        self.children: dict[int, RadixNode] = {}
        self.end: int = len(tokens) + (parent.end if parent else 0)  # tokens from the root to this node's end
        self.locks = 0  # what keeps it: requests, and pins
        self.pinned = False
        self.pins = 0  # pinned nodes at or below it
        self.hits = 0
        self.tick = 0
        self.last_access = 0.0

    def path(self) -> list[RadixNode]:
        """This node and those above it, without the root (which is never evicted)."""
        nodes: list[RadixNode] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes
