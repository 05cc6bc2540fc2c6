"""Constraints by llguidance: grammars, which `grammar_reading` makes of regexes and JSON schemas too.

llguidance reports errors as states of a matcher, not as exceptions, so every call here is followed by a check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lmnb.errors import GrammarError, LmnbError
from lmnb.runtime.compile_pool import give_way
from lmnb.runtime.constraint_size import matches_nothing
from lmnb.runtime.endless_rules import nothing_ends
from lmnb.runtime.grammar_reading import HEADER_LINES, NEEDS_LLGUIDANCE, Reading, refusal, schema_refusal
from lmnb.runtime.grammar_vocab import GrammarVocabulary
from lmnb.runtime.impossible_terminals import DEAD_END
from lmnb.runtime.request import Constraint

_MANY_BYTES = 1000  # of text that is forced; far below what takes the library to its limits


@dataclass(frozen=True)
class _Start:
    """The beginning of a grammar, as the library has it. All copies of `matcher`, which nobody advances, share a lexer,
    which finds out what may follow as it is asked, and keeps it. Once that is too much it takes no text whatsoever, in
    none of them, and only masks tell of an error."""

    matcher: Any
    first: int | None  # a token that it takes, if one is known
    make: Callable[[], Any]  # a matcher with a lexer of its own

    @classmethod
    def of(cls, make: Callable[[], Any], beginnings: Iterable[int]) -> _Start:
        """Made by `make`, taking one of the `beginnings`."""
        matcher = give_way(make)
        takes = (token_id for token_id in beginnings if matcher.validate_tokens([token_id]) == 1)
        return cls(matcher, None if matcher.is_error() else next(takes, None), make)

    def anew(self) -> _Start:
        """The same with a lexer of its own. Takes as long as compiling the grammar does."""
        return _Start(give_way(self.make), self.first, self.make)

    def is_sound(self) -> bool:
        """Whether the lexer still takes text; a microsecond. True where nobody knows what it should take."""
        return self.first is None or bool(self.matcher.deep_copy().try_consume_tokens([self.first]) == 1)


class LLGuidanceMatcher:
    """Implements `GrammarMatcher`."""

    engine = "llguidance"

    def __init__(self, vocabulary: GrammarVocabulary, start: _Start, *, counts_tokens: bool = False) -> None:
        """`counts_tokens`: see `Reading`."""
        self._vocabulary = vocabulary
        self._start = start
        self._counts_tokens = counts_tokens
        self._matcher = start.matcher.deep_copy()
        self._taken: list[int] = []  # tokens but the end
        self._is_behind = False  # whether the library has not taken all of them
        self._ended = False

    def fill(self, bitmask: np.ndarray) -> bool:
        """See `GrammarMatcher.fill`. Also False if the library reached its limits on time and memory."""
        if not self._ended and not self._is_behind:
            scratch = self._vocabulary.scratch
            # A terminal's `~` takes any bytes, to the library also those by which it knows the end.
            may_end = self._matcher.is_accepting()
            self._matcher.unsafe_compute_mask_ptr(scratch.address, scratch.num_bytes)
            if not self._matcher.is_error():  # in an error, a dead end included, it would allow the end
                return self._vocabulary.copy_mask(scratch.mask, bitmask, may_end=may_end)
        bitmask.fill(0)
        return False

    def is_beyond_limits(self) -> bool:
        """See `GrammarMatcher.is_beyond_limits`. A token that is not allowed is no error to the library."""
        if self._matcher.is_error():
            return not self._matcher.get_error().startswith(DEAD_END)
        return self._is_behind or not self._start.is_sound()

    def recover(self) -> bool:
        """See `GrammarMatcher.recover`."""
        start = self._start.anew()
        matcher = start.matcher.deep_copy()
        self._is_behind = bool(matcher.try_consume_tokens(self._taken) != len(self._taken))
        if not self._is_behind:
            self._start, self._matcher = start, matcher
        return not self._is_behind

    def accept(self, token_id: int) -> bool:
        """See `GrammarMatcher.accept`. A token that is not allowed changes nothing."""
        if self._ended or self._is_behind or not 0 <= token_id < self._vocabulary.size:
            return False
        if token_id in self._vocabulary.eos_ids:
            self._ended = bool(self._matcher.is_accepting()) and not self._matcher.is_error()
            return self._ended
        if self._matcher.try_consume_tokens([token_id]) != 1:
            return False
        self._taken.append(token_id)
        return True

    def follow(self, token_ids: Collection[int]) -> bool:
        """See `GrammarMatcher.follow`."""
        token_ids = list(token_ids)
        if not token_ids:
            return True
        if self._ended or min(token_ids) < 0 or max(token_ids) >= self._vocabulary.size:
            return False
        if not self._is_behind:
            count = self._matcher.try_consume_tokens(token_ids)
            self._taken.extend(token_ids[:count])
            if count == len(token_ids):
                return True
            if not self.is_beyond_limits():
                return False
            self._is_behind, token_ids = True, token_ids[count:]
        self._taken.extend(token_ids)
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `GrammarMatcher.rollback`."""
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if not num_tokens:
            return
        assert num_tokens <= len(self._taken), "rolled back past the start"
        del self._taken[-num_tokens:]
        # A matcher within which the lexer gave up goes back no further: it begins anew.
        self._is_behind = self._is_behind or not self._matcher.rollback(num_tokens)

    def fork(self) -> LLGuidanceMatcher:
        """See `GrammarMatcher.fork`. Costs a microsecond."""
        twin = copy(self)
        twin._matcher, twin._taken = self._matcher.deep_copy(), self._taken.copy()
        return twin

    def forced(self) -> bytes:
        """See `GrammarMatcher.forced`. Empty where tokens count: too many of them end even text that is said to be
        forced. Following very much text takes the library to its limits, which it does not say until it is asked for
        the next mask."""
        if self._ended or self._counts_tokens or self._is_behind or self._matcher.is_error():
            return b""
        text = bytes(self._matcher.compute_ff_bytes())  # from here on it is cheap to accept what spells them
        if len(text) > _MANY_BYTES:
            ahead = self._matcher.deep_copy()
            scratch = self._vocabulary.scratch
            ahead.unsafe_compute_mask_ptr(scratch.address, scratch.num_bytes)
            if ahead.is_error():
                raise GrammarError(
                    "the constraint is too large, or matches no text that ever ends: there is too much text that "
                    "must come next; use smaller repeat counts, and recursion that can end"
                )
        return text

    def is_done(self) -> bool:
        """See `GrammarMatcher.is_done`."""
        if self._is_behind:
            return False
        return self._ended or bool(self._matcher.is_stopped() and self._matcher.is_accepting())


class LLGuidanceCompiler:
    """Makes matchers for one vocabulary."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        try:
            import llguidance
        except ImportError as e:
            raise LmnbError(NEEDS_LLGUIDANCE) from e
        self._library = llguidance
        self._vocabulary = vocabulary
        # Some 20 ms a mask at most, where ordinary ones take a hundredth of one; beyond that the request fails.
        self._limits = llguidance.LLParserLimits(step_lexer_fuel=200_000, step_max_items=20_000)
        self._beginnings = vocabulary.beginnings(np.full(-(-vocabulary.size // 32), -1, dtype=np.int32))
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(vocabulary)))

    def compile(self, constraint: Constraint, reading: Reading) -> LLGuidanceMatcher:
        """`reading` is `constraint`'s. GrammarError says what in it cannot be enforced."""
        assert reading.grammar is not None
        compiled = self._compile(reading.grammar, tells_lines=reading.tells_lines, counts_tokens=reading.counts_tokens)
        if not isinstance(compiled, GrammarError):
            if reading.emptiness == "endless":
                raise nothing_ends("start")
            if reading.emptiness == "impossible":
                raise matches_nothing(constraint)
            return compiled
        if constraint.kind == "json_schema":
            raise schema_refusal(constraint, compiled, self._why_not)
        raise refusal(constraint, str(compiled))

    def _why_not(self, grammar: str) -> GrammarError | None:
        compiled = self._compile(grammar)
        return compiled if isinstance(compiled, GrammarError) else None

    def _compile(
        self, grammar: str, *, tells_lines: bool = False, counts_tokens: bool = False
    ) -> LLGuidanceMatcher | GrammarError:
        make = partial(self._library.LLMatcher, self._tokenizer, grammar, log_level=0, limits=self._limits)
        start = _Start.of(make, self._beginnings)
        if start.matcher.is_error():
            return GrammarError(_reason(start.matcher.get_error(), tells_lines=tells_lines))
        warnings = start.matcher.get_grammar_warnings()
        if warnings:  # a warning says that something in the grammar has no effect
            return GrammarError(_reason(warnings[0], tells_lines=tells_lines))
        return LLGuidanceMatcher(self._vocabulary, start, counts_tokens=counts_tokens)


class _Vocabulary:
    """The attributes that llguidance reads from a tokenizer."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens = [*vocabulary.tokens, b"<end>"]
        self.eos_token_id = vocabulary.end_id
        self.bos_token_id = None
        self.special_token_ids = [vocabulary.end_id]

    def __call__(self, text: bytes) -> list[int]:
        """Tokenize: only asked for text that is forced, and nothing is forced here."""
        return []


def _reason(message: str, *, tells_lines: bool) -> str:
    """A library's error on one line, without dumps, and without its place in a grammar that the user never sees."""
    lines = [line.strip() for line in message.split("<state>")[0].splitlines() if line.strip()]
    text = lines[0] if lines else "no reason given"
    if text.startswith("fuel exhausted"):
        return "it has too many states to tell apart; use smaller numbers (a multipleOf, counts) or fewer alternatives"
    if text.startswith("panic:"):
        return "llguidance, which enforces it, failed on it; say it in another way"
    if text.endswith("parse error:") and (errors := [line for line in lines if line.startswith("error:")]):
        text = f"{text} {errors[0].removeprefix('error:').strip()}"
    if "oneOf" in text:  # the option it proposes would accept values that the schema forbids
        return "the alternatives of oneOf may overlap; use anyOf, or tell them apart by a property with a const"
    text = re.sub(r"^(at \d+\(\d+\): )?failed to compile JSON schema: ", "", text)
    place = re.match(r"(?:at )?(\d+)\((\d+)\): ", text)
    if place is None:
        return text
    where = f" (line {int(place[1]) - HEADER_LINES}, column {place[2]})" if tells_lines else ""
    return text[place.end() :] + where
