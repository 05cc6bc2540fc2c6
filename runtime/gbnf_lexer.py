"""Which terminals of a GBNF grammar take text, as the longest first are taken, that is the next one's to begin with.

GBNF is read character by character, so that such a terminal is to be opened: written as a rule of its parts. What may
stand behind a rule is told without regard to where the rule stands: where in doubt, a terminal is named that would
have been harmless.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lmnb.runtime.grammar_regex import Range, complement, union

_MOST_COPIES = 4  # of what is repeated; beyond it the number of rounds is not looked at
_MOST_POSITIONS = 2000  # of one terminal
_MOST_STATES = 20_000  # of the terminals that may stand in one place
_MOST_PLACES = 1000  # sets of such terminals
_RANGE = re.compile(r"\\x\{([0-9A-F]+)\}-\\x\{([0-9A-F]+)\}")

Names = frozenset[str]


def clashing(rules: Iterable[Any], root: Any) -> set[str]:
    """Names (see `name_of`) of those of the terminals in `rules`, the grammar's that are no terminals, that clash."""
    grammar = _Grammar(rules, root)
    if not any(grammar.behind.values()):
        return set()  # nothing follows anything
    found = {name for name, terminal in grammar.terminals.items() if terminal is None}
    known, waiting = list[Names](), {grammar.first[root.name]}
    while waiting:
        names = max(waiting, key=len)
        waiting.discard(names)
        if not any(names <= others for others in known):  # what is found in a set is found in a larger one, too
            known.append(names)
            clashes, next_places = grammar.read(names)
            found |= clashes
            waiting |= next_places
        if len(known) > _MOST_PLACES:
            found |= grammar.terminals.keys()
            break
    return {name for name in found if grammar.is_long(name)}


def name_of(leaf: Any) -> str:
    """What the terminal is called here: a text and its rule's name may look alike."""
    return f"{type(leaf).__name__} {leaf}"


class _TooManyError(Exception):
    """A terminal has too many positions to be looked at."""


@dataclass
class _Terminal:
    """Its positions: the characters at each, those that may come behind each, those that it begins and ends with."""

    characters: list[tuple[Range, ...]] = field(default_factory=list)
    behind: list[set[int]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    may_be_empty: bool = False

    @classmethod
    def of(cls, node: Any) -> _Terminal | None:
        """None if it has too many."""
        terminal = cls()
        try:
            terminal.may_be_empty, terminal.first, terminal.last = terminal._add(node)
        except (_TooManyError, RecursionError):
            return None
        return terminal

    def _add(self, node: Any) -> tuple[bool, set[int], set[int]]:
        kind = type(node).__name__
        if kind == "LiteralNode":
            return self._row([self._one(((ord(char), ord(char)),)) for char in text_of(node)])
        if kind == "RegexNode":
            return self._one(_characters(node.rx))
        if kind == "RuleRefNode":
            return self._add(node.target.alternatives)
        if kind == "RepetitionNode":
            return self._repeated(node)
        if kind == "AlternativeNode":
            parts = [self._add(part) for part in node.alternatives]
            return any(part[0] for part in parts), _joined(p[1] for p in parts), _joined(p[2] for p in parts)
        return self._row([self._add(part) for part in node.nodes])

    def _one(self, characters: tuple[Range, ...]) -> tuple[bool, set[int], set[int]]:
        if len(self.characters) >= _MOST_POSITIONS:
            raise _TooManyError
        self.characters.append(characters)
        self.behind.append(set())
        place = {len(self.characters) - 1}
        return False, place, place

    def _row(self, parts: list[tuple[bool, set[int], set[int]]]) -> tuple[bool, set[int], set[int]]:
        empty, first, last = True, set[int](), set[int]()
        for part_empty, part_first, part_last in parts:
            self._link(last, part_first)
            first = first | part_first if empty else first
            last = last | part_last if part_empty else part_last
            empty = empty and part_empty
        return empty, first, last

    def _repeated(self, node: Any) -> tuple[bool, set[int], set[int]]:
        most = node.max_times
        if most is not None and most <= _MOST_COPIES:
            rounds = [(i >= node.min_times, self._add(node.node)) for i in range(most)]
            return self._row([(needless or empty, first, last) for needless, (empty, first, last) in rounds])
        empty, first, last = self._add(node.node)
        self._link(last, first)
        return empty or node.min_times == 0, first, last

    def _link(self, places: set[int], others: set[int]) -> None:
        for place in places:
            self.behind[place] |= others


class _Grammar:
    """What terminals may come first in each rule, and behind each terminal."""

    def __init__(self, rules: Iterable[Any], root: Any) -> None:
        self.terminals: dict[str, _Terminal | None] = {}
        self.first: dict[str, Names] = {}  # by rule
        self.behind: dict[str, set[str]] = {}  # by terminal
        self._known_beginnings: dict[Names, tuple[Range, ...]] = {}
        self._empty: dict[str, bool] = {}
        self._behind_rule: dict[str, set[str]] = {}
        self._users: dict[str, set[str]] = {}  # by rule, those whose first terminals depend on it
        by_name = {rule.name: rule for rule in rules}
        for name in by_name:
            self.first[name], self._empty[name] = frozenset(), False
            self._behind_rule[name], self._users[name] = set(), set()
        # To be visited (again), since something that it depends on has changed; the last one first, as rules mostly
        # stand before those that they use.
        self._due = dict.fromkeys(by_name)
        while self._due:
            self._at, _ = self._due.popitem()
            empty, first = self._visit(by_name[self._at].alternatives, frozenset(self._behind_rule[self._at]))
            if (empty, first) != (self._empty[self._at], self.first[self._at]):
                self._empty[self._at], self.first[self._at] = empty, first
                self._due.update(dict.fromkeys(self._users[self._at]))

    def is_long(self, name: str) -> bool:
        """Whether the terminal may be of more than a character: others can be taken whole only."""
        terminal = self.terminals[name]
        return terminal is None or any(terminal.behind)

    def read(self, names: Names) -> tuple[set[str], set[Names]]:
        """Of terminals that may stand in one place, those that go on where one that is complete could be followed by
        another; and what may stand in the next place, by which of them are complete together."""
        found, places = set[str](), set[Names]()
        states = _States([(name, terminal) for name in names if (terminal := self.terminals[name]) is not None])
        for ended, going_on in states.walk():
            if ended:
                follows = frozenset(_joined(self.behind[name] for name in ended))
                places.add(follows)
                beginnings = self._beginnings(follows) if going_on else ()
                found |= {name for name, characters in going_on if _meet(characters, beginnings)}
        if states.too_many:
            return set(names), places | {frozenset(self.behind[name]) for name in names}
        return found, places

    def _beginnings(self, names: Names) -> tuple[Range, ...]:
        if names not in self._known_beginnings:
            ranges: set[Range] = set()
            for name in names:
                terminal = self.terminals[name]
                if terminal is None:
                    ranges.add((0, 0x10FFFF))
                else:
                    ranges.update(r for place in terminal.first for r in terminal.characters[place])
            self._known_beginnings[names] = union([*ranges])
        return self._known_beginnings[names]

    def _visit(self, node: Any, after: Names) -> tuple[bool, Names]:
        """Whether it may be empty, and its first terminals; `after` may come behind it."""
        kind = type(node).__name__
        if kind == "AlternativeNode":
            parts = [self._visit(part, after) for part in node.alternatives]
            return any(empty for empty, _ in parts), frozenset(_joined(first for _, first in parts))
        if kind == "SequenceNode":
            empty, first = True, frozenset[str]()
            for part in reversed(node.nodes):
                part_empty, part_first = self._visit(part, first | after if empty else first)
                first = part_first | first if part_empty else part_first
                empty = empty and part_empty
            return empty, first
        if kind == "RepetitionNode":
            empty, first = self._visit(node.node, after)
            if node.max_times is None or node.max_times > 1:
                self._visit(node.node, after | first)
            return empty or node.min_times == 0, first
        if kind == "RuleRefNode" and not node.target.rule_is_terminal:
            target = node.target.name
            self._users[target].add(self._at)
            if not after <= self._behind_rule[target]:
                self._behind_rule[target] |= after
                self._due[target] = None
            return self._empty[target], self.first[target]
        name = name_of(node)
        if name not in self.terminals:
            self.terminals[name] = _Terminal.of(node)
        self.behind.setdefault(name, set()).update(after)
        terminal = self.terminals[name]
        return terminal is None or terminal.may_be_empty, frozenset((name,))


class _States:
    """The terminals of one place, read together, as a lexer does."""

    def __init__(self, terminals: list[tuple[str, _Terminal]]) -> None:
        self._terminals = terminals
        self.too_many = False

    def walk(self) -> Iterator[tuple[set[str], list[tuple[str, tuple[Range, ...]]]]]:
        """Of each state behind a character: the terminals that may end, and those that may go on, with what."""
        start = frozenset((t, place) for t, (_, one) in enumerate(self._terminals) for place in one.first)
        known, waiting = set(), [*self._steps(start)]
        while waiting:
            state = waiting.pop()
            if state in known:
                continue
            known.add(state)
            if len(known) > _MOST_STATES:
                self.too_many = True
                return
            ahead = frozenset((t, after) for t, place in state for after in self._terminals[t][1].behind[place])
            ended = {self._terminals[t][0] for t, place in state if place in self._terminals[t][1].last}
            yield ended, [(self._terminals[t][0], self._terminals[t][1].characters[place]) for t, place in ahead]
            waiting += self._steps(ahead)

    def _steps(self, ahead: frozenset[tuple[int, int]]) -> Iterator[frozenset[tuple[int, int]]]:
        """The sets of positions that some character leads to."""
        ranges = [(low, high + 1, at) for at in ahead for low, high in self._terminals[at[0]][1].characters[at[1]]]
        edges = sorted({edge for low, high, _ in ranges for edge in (low, high)})
        taken: list[set[tuple[int, int]]] = [set() for _ in edges]
        for low, high, at in ranges:
            for i in range(bisect_right(edges, low) - 1, bisect_right(edges, high) - 1):
                taken[i].add(at)
        return iter({frozenset(each) for each in taken if each})


def text_of(node: Any) -> str:
    """The text of a literal, which is written as JSON has it."""
    return str(json.loads(f'"{node.value}"'))


def _characters(rx: str) -> tuple[Range, ...]:
    ranges = union([(int(low, 16), int(high, 16)) for low, high in _RANGE.findall(rx)])
    return complement(ranges) if rx.startswith("[^") else ranges


def _joined(sets: Iterable[Iterable[Any]]) -> set[Any]:
    return {item for each in sets for item in each}


def _meet(some: Iterable[Range], others: tuple[Range, ...]) -> bool:
    return any(low <= last and first <= high for low, high in some for first, last in others)
