"""One request as the sampler sees it: its parameters, what was generated so far, and the mask of this step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmnb.runtime.request import SamplingParams
from lmnb.runtime.token_counts import TokenCounts
from lmnb.runtime.uniform_stream import UniformStream


class SamplerRow:
    """One request as the sampler sees it.

    `end_ids`: the tokens that end this request (`stopping.end_token_ids`). Tell it each token that becomes
    part of the request with `push`; set `bitmask` (int32 words, see `GrammarMatcher.fill`) before a step
    that is constrained and None before one that is not.
    """

    def __init__(self, params: SamplingParams, *, seed: int, end_ids: frozenset[int] = frozenset()) -> None:
        self.params = params
        self.seed = seed
        self.step = 0  # generated tokens so far: the counter of the next draw
        self.bitmask: np.ndarray | None = None
        self.mask_error: Exception | None = None  # why `bitmask` could not be made, and allows nothing
        self.counts = TokenCounts()  # kept only if a penalty asks for it
        self.has_penalties = (
            params.frequency_penalty != 0 or params.presence_penalty != 0 or params.repetition_penalty != 1
        )
        self.ends = np.array(sorted(end_ids), dtype=np.int64)
        self.suppressed = np.array(sorted(set(params.suppress_token_ids) - end_ids), dtype=np.int64)
        self.is_greedy = params.temperature == 0 or params.top_k == 1
        self.uniforms = UniformStream(seed)

    def push(self, token_id: int) -> None:
        """One generated token: `advance` and `count` together."""
        self.advance()
        self.count(token_id)

    def advance(self) -> None:
        """A token has been drawn, known or not."""
        self.step += 1

    def count(self, token_id: int) -> None:
        """Let penalties see a token that was drawn."""
        if self.has_penalties:
            self.counts.add(token_id)

    def replace(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Take the last pushes back, those of the `old` tokens, and push the `new` ones."""
        self.step += len(new) - len(old)
        if self.has_penalties:
            for token_id in reversed(old):
                self.counts.remove(token_id)
            for token_id in new:
                self.counts.add(token_id)

    @property
    def bans_end(self) -> bool:
        """Whether `min_new_tokens` still holds end tokens back."""
        return self.step < self.params.min_new_tokens and len(self.ends) > 0

    @property
    def has_edits(self) -> bool:
        """Whether some of its scores are changed, by anything but a mask."""
        return self.has_penalties or self.bans_end or len(self.suppressed) > 0

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest token is taken as it is."""
        return self.is_greedy and not self.has_edits and self.bitmask is None

    @property
    def num_logprobs(self) -> int:
        """How many of the likeliest tokens to report beside the chosen one; -1 if no log-probabilities are asked."""
        params = self.params
        return params.top_logprobs_num if params.return_logprob or params.top_logprobs_num else -1
