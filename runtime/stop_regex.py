"""Regexes that end a text, found in text that arrives in pieces. Knows nothing of tokens.

Thompson's simulation of a nondeterministic automaton (1968), with the place where each thread began: it says at every
character whether a match is complete, and how much of the text may still become one.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lmnb.errors import ArgumentError, GrammarError
from lmnb.runtime.argument_checks import shown
from lmnb.runtime.grammar_regex import Range, characters

if sys.version_info >= (3, 11):
    from re import _constants as codes  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:  # the same modules under their older names
    import sre_constants as codes
    import sre_parse as parser

_MOST_STATES = 4000
_END = ""  # what follows the last character


@dataclass(slots=True)
class _State:
    """Reads one of `characters`, or passes where the assertion `at` holds, or just passes; without `targets` it
    accepts."""

    targets: tuple[int, ...] = ()
    characters: tuple[Range, ...] | None = None
    at: Any = None


class StopRegex:
    """Finds the first match of a regex: the one that is complete first, and of those the one that began first.

    So the result does not depend on how the text was cut into pieces. `^`, `\\A` and `\\b` see the generated text only.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._states = _compile(pattern)
        self._threads: list[tuple[int, int]] = []  # (state, where it began), the earliest first
        self._position = 0
        self._previous = ""

    @property
    def held(self) -> int:
        """How many of the last characters may be the start of a match."""
        return max((self._position - began for _, began in self._threads), default=0)

    def feed(self, text: str) -> tuple[int, int] | None:
        """Go on with `text`. The match, if one is complete: how many characters of `text` it took, and its length."""
        for index, char in enumerate(text):
            here = _follow(self._states, [*self._threads, (0, self._position)], self._previous, char)
            if (began := _accepted(self._states, here)) is not None:
                return index, self._position - began
            code = ord(char)
            moved = [
                (state.targets[0], began)
                for number, began in here
                if (state := self._states[number]).characters is not None and _contains(state.characters, code)
            ]
            self._previous = char
            self._position += 1
            self._threads = _follow(self._states, moved, self._previous, None)
            if (began := _accepted(self._states, self._threads)) is not None:
                return index + 1, self._position - began
        return None

    def end(self) -> int | None:
        """The text has ended: the length of a match that this completes (`\\b` or `$` at its end)."""
        began = _accepted(self._states, _follow(self._states, self._threads, self._previous, _END))
        return None if began is None else self._position - began


def _follow(
    states: Sequence[_State], threads: Iterable[tuple[int, int]], previous: str, following: str | None
) -> list[tuple[int, int]]:
    """All states that can be reached without reading, between two characters. With `following` unknown (None),
    assertions wait."""
    seen: set[int] = set()
    reached: list[tuple[int, int]] = []
    for first, began in threads:
        stack = [first]
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            state = states[number]
            if state.at is not None and following is not None:
                if _holds(state.at, previous, following):
                    stack.extend(state.targets)
            elif state.at is not None or state.characters is not None or not state.targets:
                reached.append((number, began))
            else:
                stack.extend(state.targets)
    return reached


def _accepted(states: Sequence[_State], threads: Iterable[tuple[int, int]]) -> int | None:
    """Where the first thread began that has reached the end."""
    return next((began for number, began in threads if number == len(states) - 1), None)


def check_stop_regexes(patterns: Iterable[object]) -> None:
    """ArgumentError for what is no text, GrammarError for what is no regex or cannot be followed."""
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise ArgumentError(f"stop_regex must be non-empty text or a list of it, not {shown(pattern)}")
        _compile(pattern)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> tuple[_State, ...]:
    """The automaton; state 0 is the first, the last one accepts. GrammarError for what it cannot follow."""
    try:
        tree = _parsed(pattern)
        builder = _Builder(pattern)
        states = builder.finished(builder.sequence(tree, tree.state.flags, 0))
    except re.error as error:
        raise GrammarError(f"stop_regex={shown(pattern)} is not a regular expression: {error}") from None
    except (OverflowError, RecursionError) as error:
        raise GrammarError(f"stop_regex={shown(pattern)} is too large: {error}") from None
    # Not asked of `re`, which would count through a repetition of nothing.
    if _accepted(states, _follow(states, [(0, 0)], "", _END)) is not None:
        raise GrammarError(f"stop_regex={shown(pattern)} matches the empty text, so it would stop before anything came")
    return states


def _parsed(pattern: str) -> Any:
    try:
        return parser.parse(pattern)
    except ValueError:  # what Python says of thousands of digits
        raise GrammarError(f"stop_regex={shown(pattern)} is too large: it counts too far") from None


class _Builder:
    """Builds the states from Python's own parse tree, backwards: each part is told the state that follows it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._states = [_State()]

    def sequence(self, nodes: Iterable[Any], flags: int, after: int) -> int:
        for op, argument in reversed(list(nodes)):
            after = self._node(op, argument, flags, after)
        return after

    def finished(self, first: int) -> tuple[_State, ...]:
        """All states in reverse, behind one that leads to the first."""
        self._add(_State((first,)))
        last = len(self._states) - 1
        return tuple(
            _State(tuple(last - target for target in state.targets), state.characters, state.at)
            for state in reversed(self._states)
        )

    def _add(self, state: _State) -> int:
        if len(self._states) >= _MOST_STATES:
            raise OverflowError(f"more than {_MOST_STATES} states; use smaller repeat counts")
        self._states.append(state)
        return len(self._states) - 1

    def _node(self, op: Any, argument: Any, flags: int, after: int) -> int:
        if op in (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY):
            return self._add(_State((after,), characters(op, argument, flags)))
        if op is codes.AT:
            return self._add(_State((after,), None, _anchor(argument, flags)))
        if op is codes.SUBPATTERN:
            _, add, remove, body = argument
            return self.sequence(body, (flags | add) & ~remove, after)
        if op is codes.BRANCH:
            return self._add(_State(tuple(self.sequence(branch, flags, after) for branch in argument[1])))
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT):  # which is tried first does not change what can match
            low, high, body = argument
            return self._repeat(low, high, body, flags, after)
        raise GrammarError(
            f"stop_regex={shown(self._pattern)} needs look-around, a back-reference or an atomic group, which "
            "cannot be "
            "followed while text arrives; rewrite it without"
        )

    def _repeat(self, low: int, high: Any, body: Any, flags: int, after: int) -> int:
        if high is codes.MAXREPEAT:
            loop = self._add(_State())
            self._states[loop].targets = (self.sequence(body, flags, loop), after)
            after = loop
        else:
            end = after
            for _ in range(high - low):
                after = self._add(_State((self.sequence(body, flags, after), end)))
        for _ in range(low):
            before, after = after, self.sequence(body, flags, after)
            if after == before:
                break  # nothing, however often it is repeated
        return after


def _anchor(where: Any, flags: int) -> Any:
    if flags & re.MULTILINE and where is codes.AT_BEGINNING:
        return codes.AT_BEGINNING_LINE
    if flags & re.MULTILINE and where is codes.AT_END:
        return codes.AT_END_LINE
    return where


def _holds(at: Any, previous: str, following: str) -> bool:
    """Whether an assertion holds between two characters; "" is the text's start, or its end."""
    if at in (codes.AT_BOUNDARY, codes.AT_NON_BOUNDARY):
        return (_is_word(previous) != _is_word(following)) is (at is codes.AT_BOUNDARY)
    if at is codes.AT_BEGINNING_LINE:
        return previous in ("", "\n")
    if at is codes.AT_END_LINE:
        return following in (_END, "\n")
    return previous == "" if at in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING) else following == _END


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _contains(ranges: Sequence[Range], code: int) -> bool:
    at = bisect_right(ranges, (code, 0x110000)) - 1
    return at >= 0 and ranges[at][1] >= code
