"""Requests that begin in the middle: tokens that were generated before are taken as if they were generated now."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from lmnb.errors import GrammarError
from lmnb.runtime.constraint_size import too_large
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.recovery import accepts, fills
from lmnb.runtime.request import TokenEvent
from lmnb.runtime.sequence import Sequence
from lmnb.runtime.tokenizer import Tokenizer


def take_begun(sequence: Sequence, tokenizer: Tokenizer) -> Iterator[TokenEvent]:
    """Give a new sequence its begun tokens, one after the other, and tell of each. Its grammar must be there.

    They may finish its output: at a stop, the limit or the end of a match. What stands behind that is left out.
    GrammarError at a token that the constraint does not allow.
    """
    output, matcher = sequence.output, sequence.matcher
    for token_id in sequence.request.begun_ids:
        if output.finished:
            return
        is_end = token_id in output.end_ids
        if matcher is not None and not is_end and not accepts(matcher, token_id):
            if matcher.is_beyond_limits():
                assert sequence.request.sampling.constraint is not None
                raise too_large(sequence.request.sampling.constraint)
            token = tokenizer.decode((token_id,))
            raise GrammarError(f"the constraint does not allow {token!r} behind {output.text[-40:]!r}")
        sequence.append(token_id)
        sequence.num_begun += 1
        sequence.draw.push(token_id)
        text = output.push(token_id)
        if matcher is not None and not is_end and matcher.is_done():
            text += output.finish("stop")
        yield TokenEvent(sequence.id, (token_id,), text, (), "given")


def ruled_out(
    matcher: GrammarMatcher, begun_ids: Collection[int], ids: Collection[int], vocab_size: int
) -> frozenset[int]:
    """Those of `ids` that cannot stand behind `begun_ids`, by a fresh matcher; all, if the begun tokens cannot."""
    if not all(accepts(matcher, token_id) for token_id in begun_ids):
        return frozenset(ids)
    bitmask = np.zeros(-(-vocab_size // 32), dtype=np.int32)
    if not fills(matcher, bitmask):
        return frozenset(ids)
    words = bitmask.view(np.uint32)
    return frozenset(token_id for token_id in ids if not words[token_id // 32] >> (token_id % 32) & 1)
