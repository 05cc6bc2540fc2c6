"""Reads the text of a grammar in Lark's form: JSON schemas inside it are enforced as everywhere, and what would have no
effect here, or match something that is no text, is refused by name and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from lmnb.errors import GrammarError
from lmnb.runtime.json_reading import LossError, WholeDecoder

# In order: comments, texts, regexes, what is looked for, anything else.
_TOKEN = re.compile(
    r"""(?://|\#)[^\n]* | "(?:\\.|[^"\\\n])*" | /(?!/)(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/ | %json\b | %regex\b
    | %llguidance\b | <[^>\s"]+> | .""",
    re.VERBOSE | re.DOTALL,
)
_ATTRIBUTES = re.compile(r"^[ \t]*[?!]?[\w.-]+[ \t]*\[([^\]\n]*)\][ \t]*:", re.MULTILINE)
_WITHOUT_EFFECT = re.compile(r"\b(temperature|stop|stop_capture)\s*=")
_COUNTING = re.compile(r"\bmax_tokens\s*=")


def prepared(source: str, schema_text: Callable[[str], str]) -> str:
    """The grammar with `schema_text(schema)` in place of each schema behind `%json`."""
    for found in _ATTRIBUTES.finditer(source):
        attribute = _WITHOUT_EFFECT.search(found[1])
        if attribute is not None:
            where = _line(source, found.start(1) + attribute.start())
            raise GrammarError(
                f"the grammar's {attribute[1]}= ({where}) has no effect here; give it to gen, or remove it"
            )
    return "".join(_parts(source, schema_text))


def counts_tokens(source: str) -> bool:
    """Whether the grammar says of how many tokens a part may be."""
    return any(_COUNTING.search(found[1]) for found in _ATTRIBUTES.finditer(source))


def _parts(source: str, schema_text: Callable[[str], str]) -> Iterator[str]:
    at = 0
    while at < len(source):
        token = _TOKEN.match(source, at)
        assert token is not None  # the last alternative takes any character
        text = token[0]
        if text.startswith("<") and len(text) > 1:
            where = _line(source, at)
            raise GrammarError(f"the grammar's {text[:30]} ({where}) names tokens; it is of text: put that into quotes")
        if text == "%llguidance":
            raise GrammarError(f"%llguidance options ({_line(source, at)}) are not accepted; leave that line out")
        at = token.end()
        if text not in ("%json", "%regex"):
            yield text
            continue
        end = _end_of_json(source, at)
        yield f"{text} {schema_text(source[at:end]) if text == '%json' else source[at:end]}"
        at = end


def _end_of_json(source: str, at: int) -> int:
    begin = at + len(source[at:]) - len(source[at:].lstrip())
    try:
        return WholeDecoder().raw_decode(source, begin)[1]
    except LossError as error:
        raise GrammarError(f"in the grammar's JSON ({_line(source, begin)}), {error}") from None
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "it is nested too deeply")
        raise GrammarError(f"the grammar's JSON ({_line(source, begin)}) cannot be read: {reason}") from None


def _line(source: str, at: int) -> str:
    return f"line {source.count(chr(10), 0, at) + 1}"
