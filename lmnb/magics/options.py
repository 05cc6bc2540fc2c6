"""What stands on a magic's first line: a program's head `NAME(PARAMS)`, options, and errors that help.

Knows IPython's parser and error class, nothing of models and runs.
"""

from __future__ import annotations

import argparse
import difflib
import io
import keyword
import re
import shlex
import tokenize
from collections.abc import Iterable
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.utils.text import DollarFormatter

VIEWS = ("widget", "html", "text", "off")


def suggest(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?` if `word` is close to a known one, else ""."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


class LineParser(argparse.ArgumentParser):
    """An option parser whose every complaint is a one-line UsageError."""

    def __init__(self, magic: str) -> None:
        super().__init__(prog=magic, allow_abbrev=False, add_help=False)
        self.magic = magic

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.magic}: {message}. See {self.magic}? for help.")

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parse; unknown words raise, with the nearest option named."""
        options, unknown = self.parse_known_args(argv)
        if unknown:
            word = unknown[0].split("=")[0]
            what = "unknown option" if word.startswith("-") else "unexpected word"
            raise UsageError(
                f"{self.magic}: {what} {word!r}.{suggest(word, self.option_names())} See {self.magic}? for help."
            )
        return options

    def option_names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]


def split(magic: str, line: str) -> list[str]:
    """The line's words by the shell's rules of quoting. Raises UsageError for an open quote."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{magic}: {error} in {line.strip()!r}") from None


def expand(line: str, namespace: dict[str, Any]) -> str:
    """`$var` and `{expr}` replaced by their values, by IPython's rules: what cannot be evaluated stays."""
    try:
        return str(DollarFormatter().vformat(line, [], namespace))
    except Exception:  # whatever the user's expression raises; IPython leaves the line as it is, too
        return line


def split_head(magic: str, line: str) -> tuple[str | None, str, str]:
    """`judge(essay, n=3) -t 0` as its name, its parameters and the rest; (None, "", line) without a name."""
    match = re.match(r"\s*([^\W\d]\w*)\s*", line)
    if match is None:
        return None, "", line
    name, rest = match[1], line[match.end() :]
    if keyword.iskeyword(name) or name == "s":
        reason = "is the state's own name" if name == "s" else "is a Python keyword"
        raise UsageError(f"{magic}: a program cannot be called {name!r}, which {reason}.")
    if not rest.startswith("("):
        if rest and not line[match.end() - 1].isspace():
            raise UsageError(f"{magic}: {line.split()[0]!r} is not a program's name; a name is one Python word.")
        return name, "", rest
    end = _closing_parenthesis(rest)
    if end is None:
        raise UsageError(f"{magic}: the parameters of {name}( are never closed; put a ) after them.")
    return name, rest[1:end], rest[end + 1 :]


def _closing_parenthesis(text: str) -> int | None:
    """Index of the parenthesis that closes the one `text` starts with, by Python's own tokens."""
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.OP and token.string in "([{":
                depth += 1
            elif token.type == tokenize.OP and token.string in ")]}":
                depth -= 1
                if depth == 0:
                    return token.start[1]
    except (tokenize.TokenError, SyntaxError):
        return None
    return None


def positive(text: str) -> int:
    """A whole number of at least 1, for `type=`."""
    value = int(text) if text.strip().isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def non_negative(text: str) -> float:
    """A number of at least 0, for `type=`."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def variable(text: str) -> str:
    """A variable's name, for `type=`."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a variable's name")
    return text
