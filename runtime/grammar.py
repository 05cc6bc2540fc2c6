"""Constraints for one model: picks the engine, compiles, and keeps what was compiled.

Regexes go to llguidance: it reads all of Python's regular patterns and its masks stay under a millisecond where
others take hundreds. JSON schemas go to xgrammar, whose masks are cheapest, if it enforces every keyword in them,
and else to llguidance. What neither enforces is refused by name; nothing is dropped.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress

import numpy as np

from lmnb.errors import GrammarError
from lmnb.runtime.argument_checks import shown
from lmnb.runtime.compile_pool import untimed
from lmnb.runtime.constraint_size import KINDS, check_length, matches_nothing, too_large
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.grammar_reading import Reading
from lmnb.runtime.grammar_vocab import GrammarVocabulary
from lmnb.runtime.llguidance_grammar import LLGuidanceCompiler
from lmnb.runtime.reading_pool import ReadingPool
from lmnb.runtime.request import Constraint
from lmnb.runtime.tokenizer import Tokenizer
from lmnb.runtime.whole_imports import import_whole
from lmnb.runtime.xgrammar_grammar import XGrammarCompiler

# Processor time of the first mask. Others wait about as long for what follows, forced text first of all. Ordinary masks
# take a tenth of a millisecond.
_MOST_MASK_SECONDS = 0.03


class _AbandonedError(Exception):
    """The thread that compiled a constraint was interrupted."""


class Grammars:
    """Implements `GrammarCompiler`.

    A regex means what `re.fullmatch` means. JSON comes out compact, with the properties in the schema's order.
    Added tokens and padding are never allowed, the tokenizer's end tokens exactly where the match may end.
    The libraries are imported when first needed; LmnbError then says which one is missing.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, cache_size: int = 64) -> None:
        """`vocab_size`: the width of the model's logits. `cache_size`: how many compiled constraints are kept."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._cache_size = cache_size
        self._cache: OrderedDict[Constraint, Future[GrammarMatcher]] = OrderedDict()  # least recently used first
        self._cache_lock = threading.Lock()
        self._setup_lock = threading.Lock()
        self._readers = ReadingPool()
        self._vocabulary: GrammarVocabulary | None = None
        self._llguidance: LLGuidanceCompiler | None = None
        self._xgrammar: XGrammarCompiler | None = None

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        """See `GrammarCompiler.compile`. Threads that ask for one constraint at the same time compile it once."""
        while True:
            with suppress(_AbandonedError):
                return self._compile_once(constraint)

    def known(self, constraint: Constraint) -> GrammarMatcher | None:
        """See `GrammarCompiler.known`."""
        with self._cache_lock:
            future = self._kept(constraint)
            if future is None or not future.done() or future.exception() is not None:
                return None
            self._cache.move_to_end(constraint)
        return future.result().fork()

    def _kept(self, constraint: Constraint) -> Future[GrammarMatcher] | None:
        """What is in the cache for it, unless the texts that were followed by it so far have worn it out."""
        future = self._cache.get(constraint)
        if future is None or not future.done() or future.exception() is not None:
            return future
        return None if future.result().is_beyond_limits() else future

    def _compile_once(self, constraint: Constraint) -> GrammarMatcher:
        """_AbandonedError if another thread had begun to compile it, and was interrupted."""
        with self._cache_lock:
            future = self._kept(constraint)
            is_ours = future is None
            if future is None:
                future = self._cache[constraint] = Future()
            self._cache.move_to_end(constraint)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        if is_ours:
            try:
                future.set_result(self._compile(constraint))
            except BaseException as error:
                with self._cache_lock:  # a failure is not worth keeping, and may be mended (a library installed)
                    if self._cache.get(constraint) is future:
                        del self._cache[constraint]
                if not isinstance(error, Exception):  # an interrupt, which is this thread's alone
                    future.set_exception(_AbandonedError())
                    raise
                future.set_exception(error)
        # The compiled form is a matcher that nobody advances; each caller gets a copy.
        return future.result().fork()

    def prepare_llguidance(self) -> None:
        """Do what the first constraint would wait for, but for what only xgrammar needs. LmnbError if it is missing."""
        self._get_llguidance()

    def prepare_xgrammar(self) -> None:
        """The rest. LmnbError if it is missing."""
        self._get_xgrammar()

    def close(self) -> None:
        """See `GrammarCompiler.close`."""
        self._readers.close()

    def open_places(self, constraint: Constraint) -> tuple[str, ...]:
        """Paths of objects of a JSON schema that may have further properties although they list some."""
        return self._readers.read(constraint).open_at

    def _compile(self, constraint: Constraint) -> GrammarMatcher:
        check_length(constraint)
        matcher = self._matcher(constraint, self._readers.read(constraint))
        name = KINDS[constraint.kind]
        mask = np.zeros(-(-self._vocab_size // 32), dtype=np.int32)
        began = time.thread_time()
        allows_any = matcher.fill(mask)
        took_long = time.thread_time() - began > _MOST_MASK_SECONDS  # once: the library keeps what it has found out
        if not allows_any and not matcher.is_beyond_limits():
            raise matches_nothing(constraint)
        if took_long or not allows_any:
            raise GrammarError(
                f"the {name} {shown(constraint.source)} takes too long to follow; let fewer things be possible in one "
                "place, as by requiring an object's properties"
            )
        if not all(matcher.fork().accept(token_id) for token_id in self._get_vocabulary().beginnings(mask)):
            raise too_large(constraint)
        return matcher

    def _matcher(self, constraint: Constraint, reading: Reading) -> GrammarMatcher:
        if reading.schema is not None:
            plain = self._get_xgrammar().compile_json_schema(reading.schema, loose=constraint.loose)
            if not isinstance(plain, GrammarError):
                return plain
            if reading.grammar is None:
                raise GrammarError(f"xgrammar cannot enforce the JSON schema: {plain}")
        return self._get_llguidance().compile(constraint, reading)

    def _get_vocabulary(self) -> GrammarVocabulary:
        if self._vocabulary is None:
            self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size)
        return self._vocabulary

    def _get_llguidance(self) -> LLGuidanceCompiler:
        if self._llguidance is not None:
            return self._llguidance
        with untimed(), self._setup_lock:
            if self._llguidance is None:
                _import_library("llguidance")
                self._llguidance = LLGuidanceCompiler(self._get_vocabulary())
            return self._llguidance

    def _get_xgrammar(self) -> XGrammarCompiler:
        with untimed(), self._setup_lock:
            if self._xgrammar is None:
                _import_library("xgrammar")
                self._xgrammar = XGrammarCompiler(self._get_vocabulary())
            return self._xgrammar


def _import_library(name: str) -> None:
    """xgrammar loads torch, which must come whole. If it is missing, its compiler says so."""
    with suppress(ImportError):
        import_whole(name)
