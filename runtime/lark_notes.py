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
from lmnb.runtime.endless_rules import ending_rules
from lmnb.runtime.gbnf_lexer import clashing, name_of
from lmnb.runtime.grammar_regex import characters, codes, parser
from lmnb.runtime.json_reading import WholeDecoder

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|(?://|\#)[^\n]*) | (?P<text>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?!/)(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/[a-z]*) | (?P<json>%(?:json|regex)\b)
    | (?P<head>(?<![^\n])[ \t]*[?!]?[\w-]+(?:\.-?\d+)?[ \t]*(?:\[[^\]\n]*\])?[ \t]*:)
    | (?P<line>%\w+[^\n]*) | (?P<name>[A-Za-z_][\w-]*) | (?P<count>~[ \t]*\d+(?:\.\.\d+)?|\{\d*,?\d*\})
    | (?P<alias>->[ \t]*\w+) | (?P<sign>\.\.|.)""",
    re.VERBOSE,
)
_SPACE = re.compile(r"\s*")
_CODE = re.compile(r"\\x\{([0-9A-Fa-f]+)\}")
_ANY = ((0, 0x10FFFF),)
_JSON = tuple((ord(char), ord(char)) for char in '"-0123456789[fnt{')


def lark_notes(source: str) -> tuple[str, ...]:
    """A sentence each; () for a grammar that cannot be read here."""
    try:
        reader = _Reader(source)
        endless = reader.rules.keys() - ending_rules(reader.rules, reader.library)
        rules = [rule for rule in reader.rules.values() if not rule.rule_is_terminal]
        greedy = clashing(rules, reader.rules["start"])
    except (_UnreadError, RecursionError):
        return ()
    notes = []
    if endless:
        names = _listed((reader.lines[name], name) for name in endless)
        notes.append(
            f"what {names} matches never ends, and yet may be begun; let recursion end, by something optional or "
            "another alternative"
        )
    if greedy:
        names = _listed(map(reader.place, greedy))
        notes.append(
            f"the longest text is taken first, as by Lark's lexer, so that {names} may take what the next part should "
            "begin with; make one terminal (a name in capital letters) of both, or write the grammar as GBNF"
        )
    return tuple(notes)


def _listed(places: Iterable[tuple[int, str]]) -> str:
    """Texts with their lines, of which there may be many."""
    told = [f"{shown_path(text)} (line {line})" for line, text in sorted(places)]
    return ", ".join(told[:3]) + (", ..." if len(told) > 3 else "")


class _UnreadError(Exception):
    """Something in the grammar that is not known here."""


class _Reader:
    """`rules` by name, terminals among them; `lines`: where each stands."""

    def __init__(self, source: str) -> None:
        from llguidance import gbnf_to_lark as library

        self.library = library
        self._source = source
        self.rules: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self._written: dict[str, tuple[int, str]] = {}  # line and text of each terminal, by what `name_of` calls it
        self._tokens: list[tuple[str, str, int]] = []
        self._split()
        self._at = 0
        while self._at < len(self._tokens):
            kind, head, line = self._take()
            if kind != "head":
                raise _UnreadError
            name = re.sub(r"^[?!]", "", head.split("[")[0].rstrip(":").strip()).split(".")[0]
            rule = self._rule(name)
            try:
                rule.alternatives = self._alternatives()
            except _UnreadError:  # operators on terminals; references to other grammars
                if not rule.rule_is_terminal:
                    raise
                rule.alternatives = self._anything()
                while self._peek()[0] != "head":
                    self._take()
            self.lines[name] = line
            if rule.rule_is_terminal:
                self._written[name_of(library.RuleRefNode(name, rule))] = (line, name)
        if "start" not in self.rules or any(rule.alternatives is None for rule in self.rules.values()):
            raise _UnreadError

    def place(self, terminal: str) -> tuple[int, str]:
        """Line and text of a terminal, by what `name_of` calls it."""
        return self._written[terminal]

    def _split(self) -> None:
        at, line = 0, 1
        while at < len(self._source):
            found = _TOKEN.match(self._source, at)
            assert found is not None  # the last alternative takes any character
            kind, text = str(found.lastgroup), found[0]
            start, at = at, found.end()
            if kind == "json":
                white = _SPACE.match(self._source, at)
                at = WholeDecoder().raw_decode(self._source, white.end() if white else at)[1]
            if kind not in ("space", "line", "alias"):  # lines are directives, such as what is ignored
                self._tokens.append((kind, text.strip(), line + text[: len(text) - len(text.lstrip())].count("\n")))
            elif text.startswith(("%import", "%extend", "%override")):
                raise _UnreadError
            line += self._source.count("\n", start, at)

    def _rule(self, name: str) -> Any:
        if name not in self.rules:
            is_terminal = name.lstrip("_")[:1].isupper()
            self.rules[name] = self.library.RuleNode(name, None, "", rule_is_terminal=is_terminal)
        return self.rules[name]

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("head", "", 0)

    def _take(self) -> tuple[str, str, int]:
        token = self._peek()
        self._at += 1
        return token

    def _alternatives(self) -> Any:
        parts = [self._sequence()]
        while self._peek()[1] == "|":
            self._take()
            parts.append(self._sequence())
        return self.library.AlternativeNode(parts)

    def _sequence(self) -> Any:
        nodes: list[Any] = []
        while (token := self._peek())[0] != "head" and token[1] not in ("|", ")", "]"):
            nodes.append(self._repeated(self._atom()))
        return self.library.SequenceNode(nodes)

    def _repeated(self, node: Any) -> Any:
        kind, text, _ = self._peek()
        bounds = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(text)
        if kind == "count":
            low, comma, high = text.strip("~{} \t").replace("..", ",").partition(",")
            bounds = (int(low or 0), (int(high) if high else None) if comma else int(low))
        if bounds is None:
            return node
        self._take()
        return self.library.RepetitionNode(node, *bounds)

    def _atom(self) -> Any:
        kind, text, line = self._take()
        if kind == "sign" and text in ("(", "["):
            inner = self._alternatives()
            self._take()
            return inner if text == "(" else self.library.RepetitionNode(inner, 0, 1)
        if kind == "text" and self._peek()[1] == "..":
            self._take()
            return self._class([(ord(_text(text)), ord(_text(self._take()[1])))])
        if kind == "text":
            return self._noted(self._text(text), line, text)
        if kind == "regex":
            rule = self.library.RuleNode(text, self._regex(text), "", rule_is_terminal=True)
            return self._noted(self.library.RuleRefNode(text, rule), line, text)
        if kind == "name":
            return self.library.RuleRefNode(text, self._rule(text))
        if kind == "json":
            return self._class(_JSON if text == "%json" else _ANY)
        raise _UnreadError

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
        except (re.error, OverflowError, _UnreadError):
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
                raise _UnreadError
        return self.library.SequenceNode(parts)


def _text(written: str) -> str:
    try:
        return str(json.loads(written.rstrip("i") if not written.endswith('"') else written))
    except ValueError:
        raise _UnreadError from None
