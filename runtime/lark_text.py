"""Reads the text of a grammar in Lark's form: JSON schemas inside it are enforced as everywhere, and what would have no
effect here, or match something that is no text, is refused by name and line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lmnb.errors import GrammarError
from lmnb.runtime.argument_checks import shown
from lmnb.runtime.lark_tokens import Token, tokens

_WITHOUT_EFFECT = frozenset(("temperature", "stop", "stop_capture"))
_UNLIMITED = 1_000_000_000  # tokens: more than any text has, and a number that the library can add to


def prepared(source: str, schema_text: Callable[[str], str]) -> str:
    """The grammar with `schema_text(schema)` in place of each schema behind `%json`."""
    found = list(tokens(source))
    for name, _ in _attributes(found):
        if name.text in _WITHOUT_EFFECT:
            raise GrammarError(
                f"the grammar's {name.text}= (line {name.line}) has no effect here; give it to gen, or remove it"
            )
    return "".join(_part(token, schema_text) for token in found)


def counts_tokens(source: str) -> bool:
    """Whether the grammar says of how many tokens a part may be."""
    return any(name.text == "max_tokens" for name, _ in _attributes(tokens(source)))


def uncounted(source: str) -> str:
    """The grammar without such limits. No tokens are none whatever the tokens: that stays. The library must have
    compiled it."""
    parts, at = list[str](), 0
    for name, value in _attributes(tokens(source)):
        if name.text == "max_tokens" and int(value.text) > 0:
            parts += source[at : value.at], str(_UNLIMITED)
            at = value.at + len(value.text)
    return "".join([*parts, source[at:]])


def _attributes(found: Iterable[Token]) -> Iterator[tuple[Token, Token]]:
    """Names and values of all rules' attributes that have a value."""
    name = equals = None
    for token in found:
        if token.kind == "space":
            continue
        if name is not None and equals is not None:
            yield name, token
        equals = token if token.text == "=" and name is not None else None
        name = token if token.kind == "rule" else name if equals is not None else None


def _part(token: Token, schema_text: Callable[[str], str]) -> str:
    if token.kind == "special":
        raise GrammarError(
            f"the grammar's {token.text[:30]} (line {token.line}) names tokens; it is of text: put that into quotes"
        )
    if token.kind == "rest":
        raise GrammarError(
            f"the grammar cannot be read at {shown(token.text)} (line {token.line}); texts stand in double quotes, "
            "regexes between slashes"
        )
    if token.text == "%llguidance":
        raise GrammarError(f"%llguidance options (line {token.line}) are not accepted; leave that line out")
    return f"%json {schema_text(token.schema)}" if token.is_schema else token.text
