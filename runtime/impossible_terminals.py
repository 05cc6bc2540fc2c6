"""Terminals of a grammar in Lark's form that no text matches, by the library's own word: what it would take in their
place is asked of it for a grammar of each alone, as it looks only at the next place itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import islice
from typing import Any

from lmnb.runtime.compile_pool import give_way
from lmnb.runtime.lark_tokens import Token

DEAD_END = "NoExtension"  # how the library's error begins where nothing may come next
_MOST = 20  # terminals that are asked for: a millisecond each
# Classes that leave out, or take from each other, what may be all of them.
_EMPTY_CLASS = re.compile(r"\[\^(?:\\[^a-zA-Z]|[^\]\\])*?(?:\\[dswDSWpPuUx]|-[^\x00-\x7f])|&&|--|~~|\\P")


def may_be_impossible(token: Token) -> bool:
    """Whether what this stands in may match nothing: terminals' `&` and `~`, and some regexes."""
    return token.text in ("&", "~") or (token.kind == "regex" and _EMPTY_CLASS.search(token.text) is not None)


def impossible(terminals: Iterable[str], alone: Callable[[str], str]) -> list[str]:
    """Those of the terminals that match nothing. In doubt, and beyond the first ones, none is said to. `alone`: a
    grammar of nothing but the terminal."""
    grammars = {terminal: alone(terminal) for terminal in islice(terminals, _MOST)}
    if not grammars:
        return []
    return give_way(lambda: [terminal for terminal, grammar in grammars.items() if _matches_nothing(grammar)])


def _matches_nothing(grammar: str) -> bool:
    library, tokenizer, limits = _library()
    matcher = library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():  # it does not compile by itself
        return False
    matcher.compute_bitmask()
    return bool(matcher.is_error()) and bool(matcher.get_error().startswith(DEAD_END))


@lru_cache(maxsize=1)
def _library() -> tuple[Any, Any, Any]:
    import llguidance

    limits = llguidance.LLParserLimits(step_lexer_fuel=50_000, step_max_items=20_000)
    return llguidance, llguidance.LLTokenizer("byte"), limits
