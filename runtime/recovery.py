"""Asking a matcher whose library may have given up because of others: it begins anew then, and is asked once more."""

from __future__ import annotations

import numpy as np

from lmnb.runtime.grammar_protocol import GrammarMatcher


def accepts(matcher: GrammarMatcher, token_id: int) -> bool:
    """As its `accept`. False, and beyond its limits, only where no matcher could follow."""
    return matcher.accept(token_id) or (_recovers(matcher) and matcher.accept(token_id))


def fills(matcher: GrammarMatcher, bitmask: np.ndarray) -> bool:
    """As its `fill`. False, and beyond its limits, only where no matcher could follow."""
    return matcher.fill(bitmask) or (_recovers(matcher) and matcher.fill(bitmask))


def _recovers(matcher: GrammarMatcher) -> bool:
    return matcher.is_beyond_limits() and matcher.recover()
