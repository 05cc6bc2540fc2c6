"""Completion in `%%lmprog` cells and after `%lmnb`: what could stand at the cursor, and how much of it is typed.

`complete` is a function of the cell's text, the cursor and the session's names; `completer.py` joins it to IPython.
"""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import lmnb.language as language
from lmnb.language import ProgramState
from lmnb.magics.body import STATE
from lmnb.magics.namespace import LANGUAGE_NAMES
from lmnb.magics.options import VIEWS

CELL_MAGIC = "%%lmprog"
LINE_MAGIC = "%lmnb"
_SETS = re.compile(
    r"""\b(?:gen|gen_int|gen_string|select|set_var|var_scope)\(\s*(?:name\s*=\s*)?["'](\w+)["']"""
    r"""|\bs\[\s*["'](\w+)["']\s*\]\s*=(?!=)"""
)
_OPEN_KEY = re.compile(r"""\b([^\W\d]\w*)(?:\[\d+\])*\[\s*["'](\w*)$""")
_ATTRIBUTE = re.compile(r"\b([^\W\d]\w*)\.(\w*)$")
_WORD = re.compile(r"(?<![\w.])(\w*)$")
_COMMAND = re.compile(r"^%lmnb (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Names:
    """What the session knows. The functions are asked only when an answer needs them."""

    models: Callable[[], Iterable[str]]
    backends: Callable[[], Iterable[str]]  # variables that hold one
    states: Callable[[], Iterable[str]]  # variables that hold a program's state
    variables: Callable[[str], Iterable[str]]  # of the state in a variable
    options: Iterable[str]  # of `%%lmprog`
    help: str  # of `%lmnb`: its commands and options are read from it


@dataclass(frozen=True)
class Candidates:
    """What could stand in place of the last `typed` characters. `only`: nothing else makes sense there."""

    typed: str = ""
    texts: list[str] = field(default_factory=list)
    kind: str = ""  # IPython's word for it: "param", "function", "magic" ...
    only: bool = False


class _Call(NamedTuple):
    name: str | None
    given: set[str]


def complete(text: str, line: int, column: int, names: Names) -> list[Candidates]:
    """The candidates at a place of the cell; `line` counts from 0. Empty where the cell is none of ours."""
    lines = text.split("\n")
    before = lines[line][:column]
    stripped = before.lstrip()
    if stripped.startswith(LINE_MAGIC + " "):
        return [_line_magic(stripped, names)]
    if not lines[0].startswith(CELL_MAGIC):
        return []
    if line == 0:
        return [_options(before, names)]
    return _body("\n".join([*lines[1:line], before]), lines[0], names)


def commands(help_text: str) -> dict[str, list[str]]:
    """The commands that `%lmnb help` lists, each with its options."""
    found: dict[str, list[str]] = {}
    places = list(_COMMAND.finditer(help_text))
    for place, following in zip(places, [*places[1:], None], strict=True):
        section = help_text[place.start() : following.start() if following else None].split("\n\n")[0]
        found[place[1]] = list(dict.fromkeys(re.findall(r"--[\w-]+", section)))
    return found


def _line_magic(before: str, names: Names) -> Candidates:
    words = before.split(" ")
    known = commands(names.help)
    typed, command = words[-1], words[1]
    if len(words) == 2:
        return _matching(typed, known, "magic")
    if words[-2] == "--view":
        return _matching(typed, VIEWS, "param")
    options = known.get(command, [])
    if command == "load":  # what it takes is a path, which others complete
        return _matching(typed, options if typed.startswith("-") else [], "param")
    takes_model = f"{LINE_MAGIC} {command} [NAME]" in names.help
    return _matching(typed, [*(names.models() if takes_model else ()), *options], "param")


def _options(before: str, names: Names) -> Candidates:
    typed = re.split(r"[\s=]", before)[-1]
    last = before[: len(before) - len(typed)].rstrip(" =").rsplit(" ", 1)[-1]
    if last in ("-m", "--model"):
        return _matching(typed, [*names.models(), *names.backends()], "instance")
    if last == "--from":
        return _matching(typed, names.states(), "instance")
    if last == "--view":
        return _matching(typed, VIEWS, "param")
    return _matching(typed, names.options if typed.startswith("-") or not typed else [], "param")


def _body(before: str, head: str, names: Names) -> list[Candidates]:
    last_line = before.rsplit("\n", 1)[-1]
    if key := _OPEN_KEY.search(last_line):
        return [_matching(key[2], _keys(key[1], before, head, names), "property")]
    call, in_text = _open_call(before)
    if in_text:
        return []
    if attribute := _ATTRIBUTE.search(last_line):
        own = _members() if attribute[1] == STATE else []
        return [_matching(attribute[2], own, "function")]
    word = _WORD.search(last_line)
    typed = word[1] if word else ""
    found = [_matching(typed, _parameters(head), "param", only=False)] if typed else []
    if call is not None and call.name in LANGUAGE_NAMES:
        arguments = [f"{name}=" for name in _argument_names(call.name) if name not in call.given]
        found.append(_matching(typed, arguments, "param", only=False))
    return found


def _keys(variable: str, before: str, head: str, names: Names) -> list[str]:
    """Variables that can be read from the state in `variable`: set above in this cell, or before."""
    if variable != STATE:
        return list(names.variables(variable))
    above = [one or two for one, two in _SETS.findall(before)]
    earlier = re.search(r"--from[ =](\w+)", head)
    return list(dict.fromkeys([*above, *(names.variables(earlier[1]) if earlier else [])]))


def _open_call(before: str) -> tuple[_Call | None, bool]:
    """The innermost call that is open at the end of `before`, and whether that end is inside of a text."""
    stack: list[_Call] = []
    name: str | None = None
    try:
        for token in tokenize.generate_tokens(io.StringIO(before).readline):
            if token.type == tokenize.ERRORTOKEN and token.string[:1] in "\"'":
                return None, True
            if token.type == tokenize.OP and token.string in "([{":
                stack.append(_Call(name if token.string == "(" else None, set()))
            elif token.type == tokenize.OP and token.string in ")]}" and stack:
                stack.pop()
            elif token.type == tokenize.OP and token.string == "=" and stack and name:
                stack[-1].given.add(name)
            name = token.string if token.type == tokenize.NAME else None
    except (tokenize.TokenError, SyntaxError) as error:
        if "string" in str(error):  # one that is not closed yet
            return None, True
    return (stack[-1] if stack else None), False


@lru_cache(maxsize=1)
def _members() -> list[str]:
    hidden = {"stream", "declare", "submit", "wait_drained", "append_at", "variables"}  # within the language
    return [name for name in dir(ProgramState) if not name.startswith("_") and name not in hidden]


@lru_cache(maxsize=64)
def _argument_names(name: str) -> list[str]:
    parameters = inspect.signature(getattr(language, name)).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in named]


def _parameters(head: str) -> list[str]:
    """The parameters in `%%lmprog judge(essay, n=3)`, and the state."""
    inside = re.match(r"%%lmprog\s+\w+\s*\((.*)\)", head)
    if inside is None:
        return [STATE]
    return [STATE, *re.findall(r"(?:^|,)\s*\**(\w+)", inside[1])]


def _matching(typed: str, texts: Iterable[str], kind: str, *, only: bool = True) -> Candidates:
    fitting = [text for text in dict.fromkeys(texts) if text.startswith(typed) and text != typed]
    return Candidates(typed, fitting, kind, only)


def describe_state(name: Any) -> str | None:
    """`fork` for `s.fork`, "" for `s` itself; None for anything else."""
    if name == STATE:
        return ""
    return name[len(STATE) + 1 :] if isinstance(name, str) and name.startswith(f"{STATE}.") else None
