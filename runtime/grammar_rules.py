"""A grammar's rules, as the tree that llguidance's reader of GBNF makes of them: parts, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def parts(node: Any) -> Iterator[Any]:
    """The node and all below it, but not what it refers to."""
    yield node
    for child in node.children():
        yield from parts(child)


def settle(rules: dict[str, Any], library: Any, holds: Callable[[str], bool]) -> None:
    """Ask `holds` of each rule's name, and once more whenever it has come to hold of a rule that this one uses; never
    again of a rule of which it holds. So its time grows with the grammar's size, in whatever order the rules stand."""
    users: dict[str, list[str]] = {}
    for name, rule in rules.items():
        for node in parts(rule.alternatives):
            if isinstance(node, library.RuleRefNode):
                users.setdefault(node.name, []).append(name)
    settled: set[str] = set()
    due = dict.fromkeys(rules)  # the last one first, as rules mostly stand before those that they use
    while due:
        name, _ = due.popitem()
        if name not in settled and holds(name):
            settled.add(name)
            due.update(dict.fromkeys(users.get(name, ())))
