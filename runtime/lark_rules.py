"""The rules of a grammar in Lark's form, as a tree of the nodes that llguidance's reader of GBNF makes.

The grammar must be one that the library has compiled, so that only what it accepts has to be told apart. What is not
known here (parameters, grammars inside grammars) is an UnreadError: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from lmnb.errors import GrammarError
from lmnb.runtime.endless_rules import ending_rules
from lmnb.runtime.impossible_terminals import impossible, may_be_impossible
from lmnb.runtime.lark_tokens import Token, tokens

# Texts that match never end; each has a terminal in it that matches nothing; or some text matches.
Emptiness = Literal["endless", "impossible", ""]

_END = Token("newline", "", 0, 0)
_TIMES = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_MOST_DIGITS = 18  # of a count; more of them are for the library to refuse
_LEAVES = ("text", "regex", "json")


class UnreadError(Exception):
    """Something in the grammar that is not known here."""


class LarkRules:
    """`rules` by name, terminals among them; `lines`: where each stands. A rule without `alternatives` is a name that
    the grammar does not define: it was imported, as a terminal. What terminals match is not looked at; others may.

    `terminals`: the tokens of those that the grammar defines, by name. Regexes in rules that may match nothing are some
    of both, by their text."""

    def __init__(self, source: str) -> None:
        """UnreadError, GrammarError for JSON, RecursionError."""
        from llguidance import gbnf_to_lark as library

        self.library = library
        self.rules: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.terminals: dict[str, list[Token]] = {}
        self._imports: list[str] = []
        self._source = source
        self._any = library.RuleRefNode("", library.RuleNode("", library.SequenceNode([]), "", rule_is_terminal=True))
        self._tokens = [token for token in tokens(source) if token.kind != "space"]
        self._at = 0
        while self._at < len(self._tokens):
            self._item(self._take())
        for rule in self.rules.values():
            if rule.alternatives is None:
                self.undefined(rule)
        if "start" not in self.rules:
            raise UnreadError

    def endless(self) -> set[str]:
        """Names of rules that match no text that ever ends."""
        return self.rules.keys() - ending_rules(self.rules, self.library)

    def reachable(self) -> set[str]:
        """Names of rules and terminals that `start` leads to."""
        found, waiting = {"start"}, ["start"]
        while waiting:
            for node in self._begun(self.rules[waiting.pop()].alternatives):
                if isinstance(node, self.library.RuleRefNode) and node.name in self.rules and node.name not in found:
                    found.add(node.name)
                    waiting.append(node.name)
        return found

    def rule_out(self) -> bool:
        """Let the terminals that match nothing end nothing. Whether there are any."""
        used = self.reachable()
        none = impossible((name for name in self._doubtful() if name in used), self._alone)
        for name in none:
            self.rules[name].rule_is_terminal = False
            self.rules[name].alternatives = self.library.AlternativeNode([])
        return bool(none)

    def leaf(self, token: Token) -> Any:
        """The node of a text, a regex or JSON."""
        if not may_be_impossible(token):
            return self._any
        if token.text not in self.rules:
            nothing = self.library.SequenceNode([])
            self.rules[token.text] = self.library.RuleNode(token.text, nothing, "", rule_is_terminal=True)
            self.terminals[token.text] = [token]
        return self.library.RuleRefNode(token.text, self.rules[token.text])

    def range(self, first: Token, last: Token) -> Any:
        """The node of a range of characters."""
        return self._any

    def terminal(self, rule: Any) -> None:
        """Read what a terminal is, up to the end of its line."""
        began = self._at
        self._skip()
        self.terminals[rule.name] = self._tokens[began : self._at]
        rule.alternatives = self.library.SequenceNode([])

    def undefined(self, rule: Any) -> None:
        """For a name that the grammar does not define."""
        rule.rule_is_terminal = True
        rule.alternatives = self.library.SequenceNode([])

    def _item(self, token: Token) -> None:
        if token.kind == "newline":
            return
        if token.kind == "directive":
            self.directive(token)
            self._skip()
            if token.text == "%import":
                self._imports.append(self._between(token, self._tokens[self._at - 1]))
            return
        if token.kind not in ("rule", "terminal"):
            raise UnreadError
        rule = self._rule(token.text.removeprefix("!").removeprefix("?"))
        is_left_out = self._peek().text == "[" and self._leaves_out()
        if self._take().text != ":" or rule.alternatives is not None:
            raise UnreadError
        self.lines[rule.name] = token.line
        if token.kind == "terminal":
            rule.rule_is_terminal = True
            self.terminal(rule)
        else:
            alternatives = self._alternatives()
            rule.alternatives = self.library.SequenceNode([]) if is_left_out else alternatives
        if self._peek().kind != "newline":
            raise UnreadError

    def _leaves_out(self) -> bool:
        """Read a rule's attributes. Whether they leave it no tokens, so that it matches the empty text alone."""
        texts = [self._take().text]
        while texts[-1] != "]":
            if self._at == len(self._tokens):
                raise UnreadError
            texts.append(self._take().text)
        values = zip(texts, texts[2:], strict=False)  # what stands two further on, behind the sign
        return any(name == "max_tokens" and not value.strip("+-0") for name, value in values)

    def directive(self, token: Token) -> None:
        """Raise UnreadError for a line, of what is ignored or imported, that matters."""
        if token.text not in ("%ignore", "%import"):
            raise UnreadError

    def _begun(self, node: Any) -> Iterator[Any]:
        """The node and all below it, but what stands there no times."""
        if isinstance(node, self.library.RepetitionNode) and node.max_times == 0:
            return
        yield node
        for child in node.children():
            yield from self._begun(child)

    def _doubtful(self) -> list[str]:
        """Terminals that may match nothing, as what they are made of may, in their order."""
        users: dict[str, list[str]] = {}
        waiting = []
        for name, written in self.terminals.items():
            if any(may_be_impossible(token) for token in written):
                waiting.append(name)
            for token in written:
                if token.kind == "terminal":
                    users.setdefault(token.text, []).append(name)
        found = set(waiting)
        while waiting:
            new = set(users.get(waiting.pop(), ())) - found
            found |= new
            waiting += new
        return [name for name in self.terminals if name in found]

    def _alone(self, terminal: str) -> str:
        """A grammar of the terminal, and of those that it refers to."""
        needed, waiting = {terminal}, [terminal]
        lines = [f"start: {terminal}", *self._imports]
        while waiting:
            name = waiting.pop()
            written = self.terminals[name]
            if name in self.lines:
                lines.append(f"{name}: {self._between(written[0], written[-1]) if written else ''}")
            new = {token.text for token in written if token.text in self.terminals} - needed
            needed |= new
            waiting += new
        return "\n".join(lines) + "\n"

    def _between(self, first: Token, last: Token) -> str:
        return self._source[first.at : last.at + len(last.text)]

    def _rule(self, name: str) -> Any:
        if name not in self.rules:
            is_terminal = name.lstrip("_")[:1].isupper()
            self.rules[name] = self.library.RuleNode(name, None, "", rule_is_terminal=is_terminal)
        return self.rules[name]

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[self._at + ahead] if self._at + ahead < len(self._tokens) else _END

    def _take(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _goes_on(self) -> bool:
        """Whether another alternative follows, which may stand on the next line."""
        return self._peek().text == "|" or (self._peek().kind == "newline" and self._peek(1).text == "|")

    def _skip(self) -> None:
        """Go to the end of the line, and of those that go on with it."""
        while self._peek().kind != "newline" or self._goes_on():
            self._take()

    def _alternatives(self) -> Any:
        parts = [self._sequence()]
        while self._goes_on():
            while self._take().text != "|":
                pass
            parts.append(self._sequence())
        return self.library.AlternativeNode(parts)

    def _sequence(self) -> Any:
        nodes: list[Any] = []
        while (token := self._peek()).kind != "newline" and token.text not in ("|", ")", "]", "->"):
            nodes.append(self._repeated(self._atom()))
        if self._peek().text == "->":
            self._take()
            self._take()  # the alias
        return self.library.SequenceNode(nodes)

    def _repeated(self, node: Any) -> Any:
        sign = self._peek().text
        bounds = _TIMES.get(sign)
        if sign in ("~", "{"):
            self._take()
            low = 0 if self._peek().text == "," else self._number()
            high: int | None = low
            if self._peek().text == (".." if sign == "~" else ","):
                self._take()
                high = self._number() if self._peek().kind == "number" else None
            bounds = (low, high)
        if bounds is None:
            return node
        if sign != "~" and self._take().text not in (*_TIMES, "}"):
            raise UnreadError
        return self.library.RepetitionNode(node, *bounds)

    def _number(self) -> int:
        token = self._take()
        if token.kind != "number" or not token.text.isdecimal() or len(token.text) > _MOST_DIGITS:
            raise UnreadError
        return int(token.text)

    def _atom(self) -> Any:
        token = self._take()
        if token.text in ("(", "["):
            inner = self._alternatives()
            if self._take().text != {"(": ")", "[": "]"}[token.text]:
                raise UnreadError
            return inner if token.text == "(" else self.library.RepetitionNode(inner, 0, 1)
        if token.kind == "text" and self._peek().text == "..":
            self._take()
            return self.range(token, self._take())
        if token.kind in _LEAVES:
            return self.leaf(token)
        if token.kind in ("rule", "terminal") and not self._opens_values():
            return self.library.RuleRefNode(token.text, self._rule(token.text))
        raise UnreadError

    def _opens_values(self) -> bool:
        """Whether what follows a name gives it values: in braces that hold no count, or behind two colons."""
        if self._peek().text == "{":
            return self._peek(1).kind != "number" and self._peek(1).text != ","
        return self._peek().text == "::"


def emptiness(source: str) -> Emptiness:
    """Why no text matches the grammar, as far as that can be told from its rules, and the library from terminals."""
    try:
        rules = LarkRules(source)
        if "start" in rules.endless():
            return "endless"
        return "impossible" if rules.rule_out() and "start" in rules.endless() else ""
    except (UnreadError, GrammarError, RecursionError, ImportError):
        return ""
