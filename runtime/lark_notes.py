"""What a reader of a grammar in Lark's form may not expect: terminals that take text which what follows them may begin
with, as Lark's lexer takes the longest first, and rules that match no text that ever ends. Nothing is changed.

The grammar must be one that the library has compiled. Rust's regexes are read as Python's, of which they are nearly a
part; a terminal that cannot be read so counts as any text. Where in doubt, a terminal is named that would have been
harmless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from lmnb.runtime.argument_checks import shown_path
from lmnb.runtime.gbnf_lexer import clashing, name_of
from lmnb.runtime.grammar_regex import characters, codes, parser
from lmnb.runtime.lark_rules import LarkRules, UnreadError
from lmnb.runtime.lark_tokens import Token

_CODE = re.compile(r"\\x\{([0-9A-Fa-f]+)\}")
_ANY = ((0, 0x10FFFF),)
_JSON = tuple((ord(char), ord(char)) for char in '"-0123456789[fnt{')


def lark_notes(source: str) -> tuple[str, ...]:
    """A sentence each; none of what cannot be read here."""
    notes = []
    if endless := _endless(source):
        notes.append(
            f"what {_listed(endless)} matches never ends, and yet may be begun; let recursion end, by something "
            "optional or another alternative"
        )
    if greedy := _greedy(source):
        notes.append(
            f"the longest text is taken first, as by Lark's lexer, so that {_listed(greedy)} may take what the next "
            "part should begin with; make one terminal (a name in capital letters) of both, or write the grammar as "
            "GBNF"
        )
    return tuple(notes)


def _endless(source: str) -> list[tuple[int, str]]:
    """Lines and names of rules that may be begun, and match no text that ever ends."""
    try:
        rules = LarkRules(source)
        return [(rules.lines[name], name) for name in rules.endless() & rules.reachable()]
    except (UnreadError, RecursionError):
        return []


def _greedy(source: str) -> list[tuple[int, str]]:
    """Lines and texts of terminals that may take too much."""
    try:
        reader = _Reader(source)
        rules = [rule for rule in reader.rules.values() if not rule.rule_is_terminal]
        return [reader.place(terminal) for terminal in clashing(rules, reader.rules["start"])]
    except (UnreadError, RecursionError):
        return []


def _listed(places: Iterable[tuple[int, str]]) -> str:
    """Texts with their lines, of which there may be many."""
    told = [f"{shown_path(text)} (line {line})" for line, text in sorted(places)]
    return ", ".join(told[:3]) + (", ..." if len(told) > 3 else "")


class _Reader(LarkRules):
    """Reads what terminals are, too."""

    def __init__(self, source: str) -> None:
        self._written: dict[str, tuple[int, str]] = {}  # line and text of each terminal, by what `name_of` calls it
        super().__init__(source)

    def place(self, terminal: str) -> tuple[int, str]:
        """Line and text of a terminal, by what `name_of` calls it."""
        return self._written[terminal]

    def directive(self, token: Token) -> None:
        """See `LarkRules.directive`."""
        if token.text != "%ignore":  # imported terminals are not known
            raise UnreadError

    def undefined(self, rule: Any) -> None:
        """See `LarkRules.undefined`."""
        raise UnreadError

    def terminal(self, rule: Any) -> None:
        """See `LarkRules.terminal`."""
        try:
            rule.alternatives = self._alternatives()
        except UnreadError:  # operators on terminals; references to other grammars
            rule.alternatives = self._anything()
            self._skip()
        self._written[name_of(self.library.RuleRefNode(rule.name, rule))] = (self.lines[rule.name], rule.name)

    def range(self, first: Token, last: Token) -> Any:
        """See `LarkRules.range`."""
        return self._class([(ord(_text(first.text)), ord(_text(last.text)))])

    def leaf(self, token: Token) -> Any:
        """See `LarkRules.leaf`."""
        if token.kind == "text":
            return self._noted(self._text(token.text), token.line, token.text)
        if token.kind == "regex":
            rule = self.library.RuleNode(token.text, self._regex(token.text), "", rule_is_terminal=True)
            return self._noted(self.library.RuleRefNode(token.text, rule), token.line, token.text)
        return self._class(_JSON if token.is_schema else _ANY)

    def _noted(self, leaf: Any, line: int, text: str) -> Any:
        self._written.setdefault(name_of(leaf), (line, text))
        return leaf

    def _text(self, written: str) -> Any:
        text = _text(written)
        if not written.endswith("i"):
            return self.library.LiteralNode(json.dumps(text)[1:-1])
        cases = [sorted(c for c in {char, char.lower(), char.upper()} if len(c) == 1) for char in text]
        parts = [self._class([(ord(char), ord(char)) for char in each]) for each in cases]
        rule = self.library.RuleNode(written, self.library.SequenceNode(parts), "", rule_is_terminal=True)
        return self.library.RuleRefNode(written, rule)

    def _class(self, ranges: Any) -> Any:
        return self.library.RegexNode("[" + "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in ranges) + "]")

    def _anything(self) -> Any:
        return self.library.RepetitionNode(self._class(_ANY), 0, None)

    def _regex(self, written: str) -> Any:
        pattern, _, flags = written[1:].rpartition("/")
        try:
            tree = parser.parse(
                _CODE.sub(lambda code: f"\\U{int(code[1], 16):08x}", pattern),
                sum({"i": re.IGNORECASE, "s": re.DOTALL, "x": re.VERBOSE, "m": re.MULTILINE}.get(f, 0) for f in flags),
            )
            return self._of_tree(tree, tree.state.flags)
        except (re.error, OverflowError, UnreadError):
            return self._anything()

    def _of_tree(self, nodes: Any, flags: int) -> Any:
        parts: list[Any] = []
        for op, argument in nodes:
            if op is codes.BRANCH:
                parts.append(self.library.AlternativeNode([self._of_tree(one, flags) for one in argument[1]]))
            elif op is codes.SUBPATTERN:
                parts.append(self._of_tree(argument[3], (flags | argument[1]) & ~argument[2]))
            elif op in (codes.MAX_REPEAT, codes.MIN_REPEAT):
                low, high, body = argument
                most = None if high is codes.MAXREPEAT else high
                parts.append(self.library.RepetitionNode(self._of_tree(body, flags), low, most))
            elif op in (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY):
                parts.append(self._class(characters(op, argument, flags)))
            else:
                raise UnreadError
        return self.library.SequenceNode(parts)


def _text(written: str) -> str:
    try:
        return str(json.loads(written.rstrip("i") if not written.endswith('"') else written))
    except ValueError:
        raise UnreadError from None
