"""Rules of a grammar that only texts without an end match, told from its tree as llguidance's reader of GBNF makes
it."""

from __future__ import annotations

from typing import Any

from lmnb.errors import GrammarError
from lmnb.runtime.grammar_rules import settle


def nothing_ends(name: str) -> GrammarError:
    """What is said of a grammar whose first rule, `name`, no text matches."""
    return GrammarError(
        f"the grammar's rule {name!r} matches no text that ever ends; let recursion end, by something optional or "
        "another alternative"
    )


def ending_rules(rules: dict[str, Any], library: Any) -> set[str]:
    """Names of the rules that some text matches."""
    ending: set[str] = set()

    def ends(name: str) -> bool:
        if without_endless(rules[name].alternatives, library, ending) is None:
            return False
        ending.add(name)
        return True

    settle(rules, library, ends)
    return ending


def without_endless(node: Any, library: Any, ending: set[str]) -> Any:
    """The node without references to rules but `ending`, and terminals; None if nothing is left of it."""
    if isinstance(node, library.RuleRefNode):
        return node if node.name in ending or node.target.rule_is_terminal else None
    if isinstance(node, library.SequenceNode):
        nodes = [without_endless(part, library, ending) for part in node.nodes]
        return None if any(part is None for part in nodes) else library.SequenceNode(nodes)
    if isinstance(node, library.AlternativeNode):
        nodes = [without_endless(part, library, ending) for part in node.alternatives]
        left = [part for part in nodes if part is not None]
        return None if not left else left[0] if len(left) == 1 else library.AlternativeNode(left)
    if isinstance(node, library.RepetitionNode):
        inner = without_endless(node.node, library, ending)
        if inner is None:
            return None if node.min_times else library.SequenceNode([])
        return library.RepetitionNode(inner, node.min_times, node.max_times)
    return node
