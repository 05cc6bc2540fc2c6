"""GBNF means what it says, character by character: compared with all short texts that a grammar derives. So does
Lark's form, unless `check_constraint` notes that a terminal takes too much."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import dataclass

import pytest

from lmnb import check_constraint

MOST = 5  # characters
TIMES = [("*", (0, None)), ("+", (1, None)), ("?", (0, 1)), ("{2}", (2, 2)), ("{1,3}", (1, 3))]
ALPHABET = "ab"
TEXTS = ["".join(text) for length in range(MOST + 1) for text in itertools.product(ALPHABET, repeat=length)]


@dataclass(frozen=True)
class Node:
    """`written` as GBNF has it. `kind`: a text, a class, a rule's name, or what is made of `parts`."""

    kind: str
    written: str
    texts: frozenset[str] = frozenset()
    parts: tuple[Node, ...] = ()
    times: tuple[int, int | None] = (1, 1)

    def derived(self, rules: dict[str, set[str]]) -> set[str]:
        """Texts of at most `MOST` characters, by what is known of the rules."""
        if self.kind == "rule":
            return rules[self.written]
        if self.kind == "leaf":
            return set(self.texts)
        parts = [part.derived(rules) for part in self.parts]
        if self.kind == "or":
            return set().union(*parts)
        if self.kind == "row":
            found = {""}
            for part in parts:
                found = joined(found, part)
            return found
        low, high = self.times
        rounds = {""}
        found = set(rounds) if low == 0 else set()
        for count in range(1, (MOST + low + 1 if high is None else high) + 1):
            rounds = joined(rounds, parts[0])
            found |= rounds if count >= low else set()
        return found


def joined(some: set[str], others: set[str]) -> set[str]:
    return {one + other for one in some for other in others if len(one) + len(other) <= MOST}


def leaf(rng: random.Random, names: list[str]) -> Node:
    if rng.random() < 0.35:
        return Node("rule", rng.choice(names))
    if rng.random() < 0.6:
        text = rng.choice(["a", "b", "ab", "ba", "aab", ""])
        return Node("leaf", json.dumps(text), frozenset((text,)))
    written, texts = rng.choice([("[ab]", "ab"), ("[a]", "a"), ("[^a]", "b"), (".", "ab")])
    return Node("leaf", written, frozenset(texts))


def expression(rng: random.Random, names: list[str], depth: int = 2) -> Node:
    kind = rng.choice(["leaf", "row", "row", "or", "times"]) if depth else "leaf"
    if kind == "leaf":
        return leaf(rng, names)
    if kind == "times":
        inner = expression(rng, names, depth - 1)
        sign, times = rng.choice(TIMES)
        return Node("times", f"({inner.written}){sign}", parts=(inner,), times=times)
    parts = tuple(expression(rng, names, depth - 1) for _ in range(rng.randrange(2, 4)))
    sign = " " if kind == "row" else " | "
    return Node(kind, "(" + sign.join(part.written for part in parts) + ")", parts=parts)


def derived(grammar: dict[str, Node]) -> set[str]:
    """The texts of `root`: what is found of the rules grows until nothing new comes."""
    rules: dict[str, set[str]] = {name: set() for name in grammar}
    while True:
        found = {name: node.derived(rules) for name, node in grammar.items()}
        if found == rules:
            return rules["root"]
        rules = found


def random_grammar(rng: random.Random) -> dict[str, Node]:
    names = ["root", "x", "y"][: rng.randrange(1, 4)]
    return {name: expression(rng, names) for name in names}


@pytest.mark.parametrize("seed", range(8))
def test_random_grammars_match_what_they_derive(seed: int) -> None:
    rng = random.Random(seed)
    compared = 0
    for _ in range(50):
        grammar = random_grammar(rng)
        source = "\n".join(f"{name} ::= {node.written}" for name, node in grammar.items())
        wanted = derived(grammar)
        report = check_constraint(ebnf=source, samples=TEXTS)
        if report.error is not None:  # too ambiguous to follow, or no text matches: never for another reason
            assert "too" in report.error or not wanted, (source, report.error)
            continue
        accepted = {sample.text for sample in report.samples if sample.accepted}
        assert accepted == wanted, source
        compared += 1
    assert compared > 25


def lark(rng: random.Random, node: Node) -> str:
    """The node in Lark's form."""
    if node.kind == "rule":
        return "start" if node.written == "root" else node.written
    if node.kind == "leaf":
        return node.written if node.written.startswith('"') else f"/{node.written}/"
    parts = [lark(rng, part) for part in node.parts]
    if node.kind == "times":
        return f"({parts[0]})" + node.written[node.written.rindex(")") + 1 :]
    return "(" + (" " if node.kind == "row" else " | ").join(parts) + ")"


def test_random_grammars_in_larks_form_match_what_they_derive_or_are_noted() -> None:
    rng = random.Random(11)
    exact = differ = 0
    terminals = {name: rng.choice(["a+", "ab?", "(ab)*a", "b[ab]", "a|aa|b", "a*b"]) for name in "TU"}
    for _ in range(300):
        grammar = random_grammar(rng)
        source = "\n".join(f"{'start' if n == 'root' else n}: {lark(rng, node)}" for n, node in grammar.items()) + "\n"
        if rng.random() < 0.7:
            name, rule = rng.choice([*terminals.items()])
            source += f"{name}: /{rule}/\n"
            texts = frozenset(text for text in TEXTS if re.fullmatch(rule, text))
            twice = Node("row", "", parts=(Node("leaf", "", texts),) * 2)
            grammar["root"] = Node("or", "", parts=(grammar["root"], twice))
            source = source.replace("start: ", f"start: {name} {name} | ", 1)
        report = check_constraint(ebnf=source, samples=TEXTS)
        if report.error is not None:
            continue
        accepted = {sample.text for sample in report.samples if sample.accepted}
        wanted = derived(grammar)
        assert accepted <= wanted, source
        if not report.notes:
            assert accepted == wanted, source
        exact += not report.notes
        differ += accepted != wanted
    assert exact > 50
    assert differ > 20
