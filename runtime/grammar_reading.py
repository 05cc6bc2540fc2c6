"""What the grammar libraries are given for a constraint, as plain text: read, checked, and rewritten in their words.

This is Python, which holds the interpreter's lock for as long as the constraint is large; `reading_pool.py` has it done
in another process. No library compiles anything here, and neither torch nor a tokenizer is needed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmnb.errors import GrammarError, LmnbError
from lmnb.runtime.argument_checks import shown, shown_path
from lmnb.runtime.constraint_size import KINDS
from lmnb.runtime.gbnf import is_gbnf, to_lark
from lmnb.runtime.grammar_regex import to_rust_regex
from lmnb.runtime.grammar_schema import plan_schema, subschemas
from lmnb.runtime.lark_rules import Emptiness, emptiness
from lmnb.runtime.lark_text import counts_tokens, prepared
from lmnb.runtime.request import Constraint
from lmnb.runtime.schema_references import resolve

NEEDS_LLGUIDANCE = "regex and JSON constraints need llguidance: pip install llguidance"

# Without it the library narrows the mask to one tokenization of text that is forced; a mask says what is allowed.
_HEADER = '%llguidance {"no_forcing": true}\n'
HEADER_LINES = _HEADER.count("\n")
_WHITE_SPACE = r"[ \t\n]{0,16}"  # bounded, so that no model can go on with it for ever
_MAX_DIAGNOSED_NODES = 200
_MAX_DIAGNOSED_SECONDS = 1.0
_EMPTY = "Unsatisfiable schema: "
_OF_TEXTS = ("enum", "const", "format", "pattern", "minLength", "maxLength")  # keywords that limit them


@dataclass(frozen=True, slots=True)
class Reading:
    """`schema`: a JSON schema for xgrammar, or None if that does not enforce all of it. `grammar`: the same for
    llguidance, or None where xgrammar was asked for by name. `tells_lines`: whether the grammar's lines, behind the
    header's, are the user's own. `open_at`: paths of objects that list properties and could not be closed.
    `counts_tokens`: whether what may come next depends on the tokens of a text, not on the text alone. `emptiness`:
    why no text matches the grammar, should it compile."""

    grammar: str | None
    schema: str | None = None
    tells_lines: bool = False
    open_at: tuple[str, ...] = ()
    counts_tokens: bool = False
    emptiness: Emptiness = ""


def read_constraint(constraint: Constraint) -> Reading:
    """GrammarError for what cannot be enforced, as far as the libraries are not needed to see it."""
    kind, source, wanted = constraint.kind, constraint.source, constraint.engine
    if kind != "json_schema" and wanted == "xgrammar":
        raise GrammarError(f"xgrammar enforces JSON schemas only here; leave grammar_backend out for a {KINDS[kind]}")
    try:
        if kind == "json_schema":
            return _read_schema(constraint)
        if kind == "regex":
            return Reading(f"{_HEADER}start: /{to_rust_regex(source)}/\n")
        if is_gbnf(source):
            return Reading(f"{_HEADER}{_from_gbnf(source)}\n")
        grammar = f"{_HEADER}{prepared(source, _json_in_grammar)}\n"
        return Reading(
            grammar,
            tells_lines=True,
            counts_tokens=counts_tokens(source),
            emptiness=emptiness(source),
        )
    except RecursionError:
        raise GrammarError(f"the {KINDS[kind]} is nested too deeply; flatten it") from None


def _read_schema(constraint: Constraint) -> Reading:
    wanted, loose = constraint.engine, constraint.loose
    plan = plan_schema(constraint.source, engine=wanted)
    by_name = wanted == "xgrammar"
    text = None if by_name else json_text(plan.schema, loose=loose, short_escapes=plan.short_escapes)
    return Reading(
        None if text is None else schema_grammar(text),
        json.dumps(plan.schema) if plan.engine == "xgrammar" and (by_name or not loose) else None,
        open_at=plan.open_at,
    )


def schema_grammar(text: str) -> str:
    """The grammar of a schema that `json_text` wrote."""
    return f"{_HEADER}start: %json {text}\n"


def json_text(schema: dict[str, Any], *, loose: bool = False, short_escapes: bool = False) -> str:
    """`schema` for `%json`, which then is compact or has some white space. `short_escapes`: strings have no escapes
    but those of two characters."""
    options: dict[str, Any] = {"item_separator": ",", "key_separator": ":", "lenient": False}
    if short_escapes:
        options["json_allowed_escapes"] = 'nrbtf\\"'
    if loose:
        options.update(whitespace_flexible=True, whitespace_pattern=_WHITE_SPACE)
    else:
        options["whitespace_flexible"] = False
    return json.dumps({**schema, "x-guidance": options}, ensure_ascii=True)


def _json_in_grammar(schema: str) -> str:
    plan = plan_schema(schema, engine="llguidance")
    return json_text(plan.schema, short_escapes=plan.short_escapes)


def _from_gbnf(source: str) -> str:
    try:
        return to_lark(source)
    except ImportError as e:
        raise LmnbError(NEEDS_LLGUIDANCE) from e
    except (RecursionError, GrammarError):
        raise
    except Exception as error:  # the library raises whatever its parser meets
        raise refusal(Constraint("ebnf", source), f"it is no GBNF: {error}") from None


def refusal(constraint: Constraint, reason: str) -> GrammarError:
    """What is said of a regex or a grammar that a library refused."""
    return GrammarError(f"{KINDS[constraint.kind]} {shown(constraint.source)} cannot be enforced: {reason}")


def schema_refusal(
    constraint: Constraint, reason: GrammarError, why_not: Callable[[str], GrammarError | None]
) -> GrammarError:
    """What is said of a JSON schema that llguidance refused for `reason`. The library names no place: the deepest part
    that it refuses by itself is the culprit. A part that nothing is valid by may stand in a schema that something is.
    `why_not`: what the library says of a grammar."""
    path, latest = "#", time.monotonic() + _MAX_DIAGNOSED_SECONDS
    plan = plan_schema(constraint.source, engine=constraint.engine)
    for place, node in subschemas(plan.schema)[:_MAX_DIAGNOSED_NODES]:
        if time.monotonic() > latest:
            break
        refused = why_not(schema_grammar(json_text(node)))
        if refused is not None and place.startswith(path) and _is_empty(refused) == _is_empty(reason):
            path, reason = place, refused
    if "Regex is empty" in str(reason):
        node = resolve(json.loads(constraint.source), path)
        said = [key for key in _OF_TEXTS if isinstance(node, dict) and key in node]
        *others, last = said if len(said) > 1 else _OF_TEXTS
        reason = GrammarError(f"no text fits its {', '.join(others)} and {last} together; change one of them")
    if not _is_empty(reason):
        advice = "" if ";" in str(reason) else "; leave that part out and check the value afterwards"
        return GrammarError(f"JSON schema at {shown_path(path)} cannot be enforced: {reason}{advice}")
    told = path
    while resolve(json.loads(constraint.source), told) is None:  # it stands in what the schema was rewritten into
        told = told.rpartition("/")[0]
    why = "what it says there contradicts itself" if told != path else _why_empty(str(reason))
    return GrammarError(f"JSON schema at {shown_path(told)} is satisfied by no value: {why}; let one be possible there")


def _why_empty(reason: str) -> str:
    """The library's words, without what it has made of the numbers in the schema."""
    reason = reason.removeprefix(_EMPTY)
    if reason == "schema is false":
        return "nothing is allowed"
    found = re.fullmatch(r"range .* does not contain (a multiple of .*)", reason)
    return f"{found[1]} is not within its bounds" if found else reason


def _is_empty(error: GrammarError) -> bool:
    """Whether a schema was refused because nothing is valid by it."""
    return str(error).startswith(_EMPTY)
