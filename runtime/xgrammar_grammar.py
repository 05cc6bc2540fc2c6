"""Constraints by xgrammar: JSON schemas made only of keywords that it truly enforces (`grammar_schema` decides)."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from lmnb.errors import GrammarError, LmnbError
from lmnb.runtime.compile_pool import give_way
from lmnb.runtime.grammar_disk import GrammarDisk
from lmnb.runtime.grammar_vocab import GrammarVocabulary

_MOST_WHITE_SPACE = 16  # characters in a row, so that no model can go on with it for ever
_HEX = "[A-Fa-f0-9]"
_CODE = f'("u" {_HEX} {_HEX} {_HEX} {_HEX})'  # an escaped UTF-16 unit, as xgrammar writes it
_CHARACTER_CODE = f'("u" [A-CE-Fa-ce-f0-9] {_HEX} {_HEX} {_HEX}) | ("u" [Dd] [0-7] {_HEX} {_HEX})'


class XGrammarMatcher:
    """Implements `GrammarMatcher`."""

    engine = "xgrammar"

    def __init__(
        self, vocabulary: GrammarVocabulary, matcher: Any, accepted: Sequence[int] = (), *, ended: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._accepted = list(accepted)  # without the end token
        self._ended = ended

    def fill(self, bitmask: np.ndarray) -> bool:
        """See `GrammarMatcher.fill`."""
        if self._ended:
            bitmask.fill(0)
            return False
        return self._vocabulary.copy_mask(self._fill_mask(), bitmask)

    def is_beyond_limits(self) -> bool:
        """See `GrammarMatcher.is_beyond_limits`. It has no limits of that kind."""
        return False

    def recover(self) -> bool:
        """See `GrammarMatcher.recover`. Nothing that ever has to."""
        return True

    def accept(self, token_id: int) -> bool:
        """See `GrammarMatcher.accept`. A token that is not allowed changes nothing."""
        if self._ended or not 0 <= token_id < self._vocabulary.size:
            return False
        if token_id in self._vocabulary.eos_ids:
            self._ended = bool(self._matcher.is_completed())
            return self._ended
        if self._is_surrogate(token_id) or not self._matcher.accept_token(token_id):
            return False
        self._accepted.append(token_id)
        return True

    def follow(self, token_ids: Collection[int]) -> bool:
        """See `GrammarMatcher.follow`."""
        return all(map(self.accept, token_ids))

    def rollback(self, num_tokens: int) -> None:
        """See `GrammarMatcher.rollback`."""
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if num_tokens:
            self._matcher.rollback(num_tokens)
            del self._accepted[-num_tokens:]

    def fork(self) -> XGrammarMatcher:
        """See `GrammarMatcher.fork`. Costs some microseconds."""
        return XGrammarMatcher(self._vocabulary, self._matcher.fork(), self._accepted, ended=self._ended)

    def forced(self) -> bytes:
        """See `GrammarMatcher.forced`. Empty within a character: the library counts in whole ones."""
        if self._ended or self._matcher.is_completed():
            return b""
        return str(self._matcher.find_jump_forward_string()).encode()

    def is_done(self) -> bool:
        """See `GrammarMatcher.is_done`."""
        if self._ended:
            return True
        if not self._matcher.is_completed():
            return False
        return self._vocabulary.only_end(self._fill_mask())

    def _fill_mask(self) -> np.ndarray:
        """The library's mask, in the thread's scratch."""
        mask = self._vocabulary.scratch.mask
        mask.fill(-1)  # left as it is where nothing is forbidden
        self._matcher.fill_next_token_bitmask(mask)
        if self._accepted and self._vocabulary.opens_surrogate(self._accepted[-1]):
            self._vocabulary.forbid_surrogates(mask)
        return mask

    def _is_surrogate(self, token_id: int) -> bool:
        """Whether the token would complete what xgrammar wrongly takes for a character."""
        if not self._accepted or not self._vocabulary.opens_surrogate(self._accepted[-1]):
            return False
        return b"\xa0" <= self._vocabulary.tokens[token_id][:1] <= b"\xbf"


class XGrammarCompiler:
    """Makes matchers for one vocabulary."""

    def __init__(self, vocabulary: GrammarVocabulary, *, num_threads: int = 1) -> None:
        try:
            import xgrammar
        except ImportError as e:
            raise LmnbError("JSON schema constraints need xgrammar: pip install xgrammar") from e
        self._vocabulary = vocabulary
        self._matcher_class = xgrammar.GrammarMatcher
        info = xgrammar.TokenizerInfo(
            [*vocabulary.tokens, b""],
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size + 1,
            stop_token_ids=[vocabulary.end_id],
        )
        self._disk = GrammarDisk(xgrammar.CompiledGrammar, info, vocabulary)
        self._read_schema = xgrammar.Grammar.from_json_schema
        self._read_ebnf = xgrammar.Grammar.from_ebnf
        # Its own cache has no bound by default; compiled forms are cached one level up, whichever the library.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=num_threads, cache_enabled=False)

    def compile_json_schema(self, text: str, *, loose: bool = False) -> XGrammarMatcher | GrammarError:
        """JSON that the schema `text` allows, properties in the schema's order, compact or with some white space; or
        why it cannot be enforced. What took long to compile is kept on disk."""
        compiled = self._disk.load(text, loose)
        if compiled is None:
            began = time.perf_counter()
            try:
                compiled = self._compile(text, loose)
            except RuntimeError as e:
                return GrammarError(re.sub(r"^\[[\d:]+\] \S+: ", "", str(e).strip().splitlines()[-1]))
            self._disk.save(text, loose, compiled, time.perf_counter() - began)
        return XGrammarMatcher(self._vocabulary, self._matcher_class(compiled))

    def _compile(self, schema: str, loose: bool) -> Any:
        read = partial(
            self._read_schema,
            schema,
            any_whitespace=loose,
            separators=None if loose else (",", ":"),
            strict_mode=False,
            max_whitespace_cnt=_MOST_WHITE_SPACE if loose else None,
        )
        ebnf = _without_surrogates(str(give_way(read)))
        grammar = give_way(partial(self._read_ebnf, ebnf))
        return give_way(partial(self._compiler.compile_grammar, grammar))


def _without_surrogates(ebnf: str) -> str:
    """xgrammar's grammar of a schema, without codes of halves of a character (`\\ud83d`): readers of JSON refuse a half
    that stands alone, or make a text of it that nothing can encode. RuntimeError if codes are not written as known."""
    # A rule is a line, and texts in it have their line ends escaped.
    changed, count = re.subn(
        rf"^(basic_escape ::= .*){re.escape(_CODE)}", lambda match: match[1] + _CHARACTER_CODE, ebnf, flags=re.MULTILINE
    )
    if count != 1:
        raise RuntimeError("its rule for escaped characters is not known here; use another version of xgrammar")
    # `\xe9` is written whatever follows, but read with as many digits as follow.
    return re.sub(r"\\(?:x([0-9a-f]{2})|.)", lambda match: f"\\u00{match[1]}" if match[1] else match[0], changed)
