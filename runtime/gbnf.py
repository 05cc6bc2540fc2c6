"""Grammars in GBNF's form (llama.cpp's), in Lark's: read by llguidance's own parser, and written so that they mean the
same.

GBNF is read character by character; Lark's terminals are read whole, the longest first, so that `("x" | "xy") "yz"`
would not match `xyz`. A grammar without recursion is one terminal here, which is a regex. In others, what stands
between rules that hold themselves is one, unless it would take text that what follows may begin with
(`gbnf_lexer.py`): its parts are terminals then, down to single characters where need be. (Were all of them, masks
would take as much as a hundred times as long.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from itertools import groupby
from typing import Any

from lmnb.runtime.endless_rules import ending_rules, nothing_ends, without_endless
from lmnb.runtime.gbnf_lexer import clashing, name_of, text_of
from lmnb.runtime.grammar_rules import parts, settle

_UNIT = re.compile(r"\\x\{([0-9A-F]+)\}|\\(.)|(.)", re.DOTALL)
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}
# At the beginning of a line; neither form has texts, regexes or comments that go on there.
_RULE = re.compile(r"^[ \t]*[^\s\"/#|:]*[ \t]*::=", re.MULTILINE)
_ANY = r"[\x{0}-\x{10FFFF}]"


def is_gbnf(source: str) -> bool:
    """Whether the grammar is in GBNF's form, and not in Lark's: it has a rule in it."""
    return _RULE.search(source) is not None


def to_lark(source: str) -> str:
    """The grammar in Lark's form. ImportError without llguidance, whose parser raises whatever it meets."""
    from llguidance import gbnf_to_lark as library

    rules = _parser(library).parse(source)
    if "root" not in rules:
        raise ValueError("No 'root' rule found")
    for rule in rules.values():
        rule.alternatives = rule.alternatives.simplify()
        for node in parts(rule.alternatives):
            if isinstance(node, library.RuleRefNode):
                if node.name not in rules:
                    raise ValueError(f"Rule {node.name!r} not found")
                node.target = rules[node.name]
    _prune(rules, library)

    def is_terminal(name: str) -> bool:
        rules[name].rule_is_terminal = rules[name].alternatives.is_terminal()
        return bool(rules[name].rule_is_terminal)

    settle(rules, library, is_terminal)
    whole = rules["root"].rule_is_terminal
    for number, rule in enumerate(rules.values()):
        rule.name = f"R{number}" if rule.rule_is_terminal else "start" if rule is rules["root"] else f"r{number}"
        rule.comment = ""
        rule.alternatives = _written(rule.alternatives, library)
    runs: list[Any] = []
    others = [rule for rule in rules.values() if not rule.rule_is_terminal]
    for rule in others:
        rule.alternatives = _fused(rule.alternatives, library, runs)
    opened: dict[str, Any] = {}
    while not whole and (names := clashing([*others, *opened.values()], rules["root"])):
        for rule in [*others, *opened.values()]:
            rule.alternatives = _opened(rule.alternatives, library, opened, names)
    lines = [f"start: {rules['root'].name}"] if whole else []
    return "\n".join([*lines, *map(str, rules.values()), *map(str, runs), *map(str, opened.values())])


def _prune(rules: dict[str, Any], library: Any) -> None:
    """Take out what only texts without an end match: nothing may begin with it. GrammarError if that is all."""
    ending = ending_rules(rules, library)
    if "root" not in ending:
        raise nothing_ends("root")
    for name in [*rules]:
        if name not in ending:
            del rules[name]
        else:
            rules[name].alternatives = without_endless(rules[name].alternatives, library, ending)


def _opened(node: Any, library: Any, opened: dict[str, Any], names: Collection[str]) -> Any:
    """The node with terminals in `names` in their parts: references to rules, which are put into `opened`, or the
    characters of a text."""
    if isinstance(node, library.RepetitionNode):
        inner = _opened(node.node, library, opened, names)
        return library.RepetitionNode(inner, node.min_times, node.max_times)
    if isinstance(node, library.AlternativeNode):
        return library.AlternativeNode([_opened(part, library, opened, names) for part in node.alternatives])
    if isinstance(node, library.SequenceNode):
        return library.SequenceNode([_opened(part, library, opened, names) for part in node.nodes])
    if name_of(node) not in names:
        return node
    if isinstance(node, library.LiteralNode):
        return library.SequenceNode([library.LiteralNode(json.dumps(char)[1:-1]) for char in text_of(node)])
    rule = node.target
    if rule.name not in opened:
        opened[rule.name] = library.RuleNode(f"s{len(opened)}", rule.alternatives, "")
    return library.RuleRefNode(rule.name, opened[rule.name])


def _fused(node: Any, library: Any, runs: list[Any]) -> Any:
    """The node, changed: neighbours that hold no rule that holds itself are references to one of `runs`, which grow."""
    if isinstance(node, library.SequenceNode):
        nodes: list[Any] = []
        for is_terminal, group in groupby(node.nodes, key=lambda part: bool(part.is_terminal())):
            parts = list(group)
            if is_terminal and len(parts) > 1:
                run = library.RuleNode(f"S{len(runs)}", library.SequenceNode(parts), "", rule_is_terminal=True)
                runs.append(run)
                nodes.append(library.RuleRefNode(run.name, run))
            else:
                nodes += parts if is_terminal else [_fused(part, library, runs) for part in parts]
        node.nodes = nodes
    elif isinstance(node, library.AlternativeNode):
        node.alternatives = [_fused(part, library, runs) for part in node.alternatives]
    elif isinstance(node, library.RepetitionNode):
        node.node = _fused(node.node, library, runs)
    return node


def _written(node: Any, library: Any) -> Any:
    """The node, changed: literals as JSON has them, and any character for a dot."""
    if isinstance(node, library.LiteralNode):
        return library.LiteralNode(json.dumps("".join(map(_character, _UNIT.finditer(node.value))))[1:-1])
    if isinstance(node, library.RegexNode) and node.rx == ".":
        return library.RegexNode(_ANY)
    for field in ("node", "nodes", "alternatives"):
        part = getattr(node, field, None)
        if isinstance(part, list):
            setattr(node, field, [_written(each, library) for each in part])
        elif part is not None:
            setattr(node, field, _written(part, library))
    if isinstance(node, library.RepetitionNode) and isinstance(node.node, library.RepetitionNode):
        node.node = library.SequenceNode([node.node])  # the library puts these into brackets
    return node


def _character(unit: re.Match[str]) -> str:
    code, short, plain = unit.groups()
    return chr(int(code, 16)) if code else _SHORT.get(short, short) if short else str(plain)


def _parser(library: Any) -> Any:
    """The library's parser; codes keep their digits, classes mean no more than they list, and no rule is lost."""

    class Parser(library.GrammarParser):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._names: set[str] = set()

        def _parse_rule(self, pos: Any) -> tuple[Any, Any]:
            rule, after = super()._parse_rule(pos)
            if rule.name in self._names:
                raise library.GbnfToLarkError(pos, f"Rule {rule.name!r} is there twice; put | between its alternatives")
            self._names.add(rule.name)
            return rule, after

        def _parse_char(self, pos: Any) -> Any:
            coded = re.match(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))", pos.peek(10))
            if coded is None:
                return super()._parse_char(pos)
            return f"\\x{{{int(coded[1] or coded[2] or coded[3], 16):X}}}", pos.advance(coded.end())

        def _parse_char_class(self, pos: Any) -> Any:
            pos = pos.advance()
            negated = pos.current() == "^"
            pos = pos.advance() if negated else pos
            parts = []
            while pos.current() != "]":
                low, pos = self._code(pos)
                high = low
                if pos.current() == "-" and pos.peek(2) != "-]":
                    high, pos = self._code(pos.advance())
                parts.append(f"\\x{{{low:X}}}-\\x{{{high:X}}}")
            if not parts:
                raise library.GbnfToLarkError(pos, "A class must list a character")
            return library.RegexNode(f"[{'^' if negated else ''}{''.join(parts)}]"), pos.advance()

        def _code(self, pos: Any) -> tuple[int, Any]:
            text, after = self._parse_char(pos)
            unit = _UNIT.fullmatch(text)
            assert unit is not None
            return ord(_character(unit)), after

    return Parser()
