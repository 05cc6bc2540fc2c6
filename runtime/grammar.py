"""Constraints for one model: picks the engine, compiles, and keeps what was compiled.

Regexes go to llguidance: it reads all of Python's regular patterns and its masks stay under a millisecond where
others take hundreds. JSON schemas go to xgrammar, whose masks are cheapest, if it enforces every keyword in them,
and else to llguidance. What neither enforces is refused by name; nothing is dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress

import numpy as np

from lmnb.errors import GrammarError
from lmnb.runtime.compile_pool import untimed
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.grammar_regex import to_rust_regex
from lmnb.runtime.grammar_schema import plan_schema, subschemas
from lmnb.runtime.grammar_vocab import GrammarVocabulary
from lmnb.runtime.llguidance_grammar import LLGuidanceCompiler
from lmnb.runtime.request import Constraint
from lmnb.runtime.tokenizer import Tokenizer
from lmnb.runtime.whole_imports import import_whole
from lmnb.runtime.xgrammar_grammar import XGrammarCompiler

_MAX_DIAGNOSED_NODES = 200
_MAX_CHARACTERS = 200_000


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
        self._vocabulary: GrammarVocabulary | None = None
        self._llguidance: LLGuidanceCompiler | None = None
        self._xgrammar: XGrammarCompiler | None = None

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        """See `GrammarCompiler.compile`. Threads that ask for one constraint at the same time compile it once."""
        with self._cache_lock:
            future = self._cache.get(constraint)
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
                future.set_exception(error)
        # The compiled form is a matcher that nobody advances; each caller gets a copy.
        return future.result().fork()

    def _compile(self, constraint: Constraint) -> GrammarMatcher:
        if len(constraint.source) > _MAX_CHARACTERS:
            raise GrammarError(
                f"the {constraint.kind.replace('_', ' ')} is {len(constraint.source)} characters long; at most "
                f"{_MAX_CHARACTERS} are accepted"
            )
        matcher: GrammarMatcher
        try:
            if constraint.kind == "json_schema":
                matcher = self._compile_schema(constraint)
            else:
                matcher = self._compile_text(constraint)
        except RecursionError:
            raise GrammarError(f"the {constraint.kind.replace('_', ' ')} is nested too deeply; flatten it") from None
        if not matcher.fill(np.zeros(-(-self._vocab_size // 32), dtype=np.int32)):
            raise GrammarError(f"the {constraint.kind.replace('_', ' ')} {constraint.source[:60]!r} matches nothing")
        return matcher

    def _compile_text(self, constraint: Constraint) -> GrammarMatcher:
        """A regex or a grammar."""
        name = "regex" if constraint.kind == "regex" else "grammar"
        if constraint.engine == "xgrammar":
            raise GrammarError(f"xgrammar enforces JSON schemas only here; leave grammar_backend out for a {name}")
        compiler = self._get_llguidance()
        if constraint.kind == "regex":
            compiled = compiler.compile_regex(to_rust_regex(constraint.source))
        else:
            compiled = compiler.compile_ebnf(constraint.source)
        if isinstance(compiled, GrammarError):
            raise GrammarError(f"{name} {constraint.source[:60]!r} cannot be enforced: {compiled}")
        return compiled

    def _compile_schema(self, constraint: Constraint) -> GrammarMatcher:
        wanted, loose = constraint.engine, constraint.loose
        plan = plan_schema(constraint.source, engine=wanted)
        if plan.engine == "xgrammar" and (wanted == "xgrammar" or not loose):
            plain = self._get_xgrammar().compile_json_schema(plan.schema, loose=loose)
            if not isinstance(plain, GrammarError):
                return plain
            if wanted == "xgrammar":
                raise GrammarError(f"xgrammar cannot enforce the JSON schema: {plain}")
        compiler = self._get_llguidance()
        compiled = compiler.compile_json_schema(plan.schema, loose=loose)
        if not isinstance(compiled, GrammarError):
            return compiled
        path, reason = "#", compiled
        # The library names no place: the deepest part that it refuses by itself is the culprit.
        for place, node in subschemas(plan.schema)[:_MAX_DIAGNOSED_NODES]:
            refused = compiler.compile_json_schema(node)
            if isinstance(refused, GrammarError) and place.startswith(path):
                path, reason = place, refused
        raise GrammarError(f"JSON schema at {path} cannot be enforced: {reason}")

    def _get_vocabulary(self) -> GrammarVocabulary:
        if self._vocabulary is None:
            self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size)
        return self._vocabulary

    def _get_llguidance(self) -> LLGuidanceCompiler:
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
