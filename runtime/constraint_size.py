"""How large a constraint may be, and which ones are so small that they may be read anywhere.

Reading is Python, which holds up every other thread. Imports no library, so that callers can ask at once.
"""

from __future__ import annotations

import re

from lmnb.errors import GrammarError
from lmnb.runtime.argument_checks import shown
from lmnb.runtime.request import Constraint

KINDS = {"regex": "regex", "json_schema": "JSON schema", "ebnf": "grammar"}
MOST_CHARACTERS = 200_000
# Beyond it a regex that is more than texts joined by | takes long to read.
MOST_REGEX_CHARACTERS = 20_000

# In characters. What is no larger takes some milliseconds at most (measured over hostile ones of each kind); schemas
# with these words in them grow as they are read, and every range of a regex without regard to case takes ten.
_SMALL = {"regex": 400, "json_schema": 1000, "ebnf": 400}
_SMALL_GROWING = 160
_SMALL_CASELESS = 40
_CASELESS = re.compile(r"\(\?\w*i")
_GROWING = re.compile(
    r'"(?:uniqueItems|(?:min|max)?[cC]ontains|not|if|oneOf|allOf|unevaluated\w+|propertyNames|dependen\w+)"|%json|'
    + _CASELESS.pattern
)


def is_small(constraint: Constraint) -> bool:
    """Whether reading it takes so little that it may be done anywhere."""
    length = len(constraint.source)
    if length > _SMALL[constraint.kind]:
        return False
    if constraint.kind == "regex" and length > _SMALL_CASELESS and _CASELESS.search(constraint.source):
        return False
    return length <= _SMALL_GROWING or _GROWING.search(constraint.source) is None


def check_length(constraint: Constraint) -> None:
    """GrammarError for one that is longer than any that is read."""
    length = len(constraint.source)
    if length <= MOST_CHARACTERS:
        return
    most = str(MOST_CHARACTERS)
    if constraint.kind == "regex":
        most = f"{MOST_REGEX_CHARACTERS} ({MOST_CHARACTERS} of a regex that is only texts joined by |)"
    raise GrammarError(f"the {KINDS[constraint.kind]} is {length} characters long; at most {most} are accepted")


# Processor time that following one text may take; ordinary grammars take some hundredths of a millisecond a token.
_FOLLOWING_SECONDS, _FOLLOWING_SECONDS_A_TOKEN = 0.25, 0.003

_SMALLER = {
    "regex": "use smaller repeat counts",
    "json_schema": "use smaller counts, and fewer alternatives",
    "ebnf": "say long lists of texts by a regex or a terminal (a name in capital letters), and long repetitions by * "
    "where a rule ends with itself",
}


def matches_nothing(constraint: Constraint) -> GrammarError:
    """What is said of one that no text matches."""
    return GrammarError(f"the {KINDS[constraint.kind]} {shown(constraint.source)} matches nothing")


def too_large(constraint: Constraint) -> GrammarError:
    """What is said of one whose library reaches its limits where it takes text that its own mask allows."""
    kind = constraint.kind
    return GrammarError(f"the {KINDS[kind]} {shown(constraint.source)} is too large to follow; {_SMALLER[kind]}")


def too_slow(seconds: float, num_tokens: int) -> GrammarError | None:
    """What is said of one if following so many tokens has taken too much of the processor's time."""
    if seconds <= _FOLLOWING_SECONDS + _FOLLOWING_SECONDS_A_TOKEN * num_tokens:
        return None
    return GrammarError("the constraint's masks take too long to compute; simplify it")
