"""The tokens of a grammar in Lark's form, as llguidance's reader sees them: the longest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from lmnb.errors import GrammarError
from lmnb.runtime.json_reading import LossError, WholeDecoder

# Names come before signs, as `?x` and `_x` are names; numbers, too, as `+1` is one. Regexes may hold line ends.
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+ | (?:\#|//)[^\n]*) | (?P<newline>(?:\r?\n)+[ \t]*)
    | (?P<text>"(?:\\.|[^"\\])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*) | (?P<special><[^<>\s]+>) | (?P<json>%(?:json|regex)\b)
    | (?P<directive>%\w+) | (?P<rule>!?[_?]?[a-z][_a-z0-9-]*) | (?P<terminal>_?[A-Z][_A-Z0-9-]*)
    | (?P<number>[+-]?[0-9]+(?:\.(?!\.)[0-9]*)?(?:[eE][+-]?[0-9]+)?) | (?P<sign>->|::|\.\.|[:,.(){}\[\]~|&=_+*?])
    | (?P<rest>[\s\S]+)""",
    re.VERBOSE,
)
_WHITE = re.compile(r"[ \t\r\n]*")


class Token(NamedTuple):
    """`kind`: a group of `_TOKEN`, of which `rest` is no token, and all that follows. `at`: where it stands in the
    source, on which line."""

    kind: str
    text: str  # of `json`, the value as well
    at: int
    line: int

    @property
    def is_schema(self) -> bool:
        return self.kind == "json" and self.text.startswith("%json")

    @property
    def schema(self) -> str:
        """The JSON behind `%json`."""
        return self.text.removeprefix("%json")


def tokens(source: str) -> Iterator[Token]:
    """All of them, white space and comments too. GrammarError for JSON that cannot be read."""
    at, line = 0, 1
    while at < len(source):
        found = _TOKEN.match(source, at)
        assert found is not None  # the last alternative takes any character
        end = found.end()
        if found.lastgroup == "json":
            end = _end_of_json(source, end, line)
        text = source[at:end]
        yield Token(str(found.lastgroup), text, at, line)
        at, line = end, line + text.count("\n")


def _end_of_json(source: str, at: int, line: int) -> int:
    white = _WHITE.match(source, at)
    begin = white.end() if white else at
    where = f"line {line + source.count(chr(10), at, begin)}"
    try:
        return WholeDecoder().raw_decode(source, begin)[1]
    except LossError as error:
        raise GrammarError(f"in the grammar's JSON ({where}), {error}") from None
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "it is nested too deeply")
        raise GrammarError(f"the grammar's JSON ({where}) cannot be read: {reason}") from None
