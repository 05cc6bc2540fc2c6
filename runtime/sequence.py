"""One request inside the engine: its tokens, how far they are computed, and who owns their slots."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.handle import RequestHandle
from lmnb.runtime.mask_state import MaskState
from lmnb.runtime.output_stream import OutputStream
from lmnb.runtime.prefix_cache import Tokens
from lmnb.runtime.radix_node import RadixNode
from lmnb.runtime.request import Completion, Request, TokenEvent, TokenLogprob
from lmnb.runtime.sampler_row import SamplerRow
from lmnb.runtime.seam_keys import SeamKeys


class Sequence:
    """Slots of a sequence's tokens, by position:

    0 ........ num_shared ........ num_computed ... num_slots ... num_tokens
    | the radix tree's, locked   | ours, KV there | ours, this step's | none yet |

    The last `num_pending` tokens are on their way: a step that was launched will choose them, and only the device
    knows them until `land`.
    """

    def __init__(self, request: Request, handle: RequestHandle, output: OutputStream, draw: SamplerRow) -> None:
        self.id = handle.request_id
        self.request = request
        self.handle = handle
        self.output = output
        self.draw = draw
        self.matcher: GrammarMatcher | None = None
        self.fresh_matcher: GrammarMatcher | None = None  # at the start, where stops may cut what it asks for
        self.origins = bytearray()  # of each generated token: whether all of its text was forced
        self.num_begun = 0  # generated tokens that came with the request
        self.num_sampled = 0  # tokens that took a step each, replaced ones included
        self.grammar_seconds = 0.0  # processor time that its grammar has taken
        self.mask = MaskState.NONE  # of its next choice
        self.planned: deque[int] = deque()  # what the next steps choose, one token each: its grammar forces them
        self.mask_behind: np.ndarray | None = None  # for the choice behind all that is forced, if it is known already
        self.unscored: int | None = None  # the first forced token whose log-probability is still to come
        self.held: TokenEvent | None = None  # tells of forced tokens, once their log-probabilities are there
        self.layout = request.layout
        self.seams: SeamKeys | None = None  # the cache's, once the scheduler knows the sequence
        self.num_prompt = len(request.input_ids)
        self.num_tokens = self.num_prompt
        self.num_pending = 0
        self._tokens: Tokens = np.empty(self.num_prompt + min(request.sampling.max_new_tokens, 1024), dtype=np.int32)
        self._tokens[: self.num_prompt] = request.input_ids
        # Scheduling
        self.prefill_end = self.num_prompt  # known tokens when it was admitted: from there on it decodes
        self.num_computed = 0
        self.num_shared = 0
        self.num_slots = 0
        self.num_matched = 0  # how much was in the tree at admission: all of it is locked, not all of it used
        self.row = -1  # in the slot table, while admitted
        self.node: RadixNode | None = None  # ends the shared part; locked
        self.tail: RadixNode | None = None  # the leaf this sequence made
        self.num_bypassed = 0
        self.peeked = (-1, 0)  # (cache version, matched tokens)
        # Results
        self.cached_tokens: int | None = None
        self.input_logprobs: dict[int, TokenLogprob] = {}
        self.logprobs: list[TokenLogprob] = []
        self.num_preemptions = 0
        self.submitted = time.perf_counter()
        self.first_scheduled: float | None = None
        self.first_token: float | None = None

    @property
    def tokens(self) -> Tokens:
        """int32 [num_tokens]: prompt and generated tokens, a view."""
        return self._tokens[: self.num_tokens]

    def tokens_at(self, start: int, end: int) -> Tokens:
        """int32 [end - start]: the tokens [start, end), a view; -1: on its way."""
        return self._tokens[start:end]

    def token_at(self, position: int) -> int:
        """One token's id; -1 while it is on its way."""
        return int(self._tokens[position])

    def keys(self, count: int) -> Tokens:
        """int32 [count]: what the first tokens are called in the radix cache."""
        tokens = self._tokens[:count]
        return tokens if self.seams is None else self.seams.keys(tokens, self.layout)

    def positions(self, start: int, end: int) -> NDArray[np.int64]:
        """Rotary positions of the tokens [start, end)."""
        positions = np.arange(start, end, dtype=np.int64)
        for section in self.layout.sections:
            first = max(section.start, start)
            if first < end:
                positions[first - start :] = np.arange(first, end) + (section.position - section.start)
        return positions

    @property
    def is_decoding(self) -> bool:
        return self.num_computed >= self.prefill_end

    @property
    def wants_token(self) -> bool:
        """Whether computing its last token leads to another: there is one to compute, and room for what follows."""
        return self.num_computed < self.num_tokens and self.num_generated < self.request.sampling.max_new_tokens

    @property
    def awaits_choice(self) -> bool:
        """Whether all its tokens are computed and the next one is not even on its way: its mask is late."""
        return self.num_computed == self.num_tokens

    @property
    def num_known(self) -> int:
        """How many of its tokens are not on their way."""
        return self.num_tokens - self.num_pending

    @property
    def choice_needs_tokens(self) -> bool:
        """Whether choosing its next token takes its tokens themselves, not only what the model says behind them."""
        return self.matcher is not None or self.draw.has_penalties

    @property
    def grammar_pace(self) -> float:
        """Seconds of processor time that its grammar takes for a token."""
        return self.grammar_seconds / (self.num_sampled + 1)

    @property
    def num_generated(self) -> int:
        return self.num_tokens - self.num_prompt

    @property
    def match_limit(self) -> int:
        """How many leading tokens may come from the cache: at least one must be computed to get logits, and
        prompt log-probabilities need the logits from the token before them on."""
        limit = self.num_tokens - 1
        start = self.request.logprob_start
        if start is not None and len(self.input_logprobs) < self.num_prompt - start:
            limit = min(limit, max(start - 1, 0))
        if self.unscored is not None:
            limit = min(limit, self.unscored - 1)
        return limit

    def append(self, token_id: int) -> None:
        """Add a generated token that is not forced by the grammar."""
        self.origins.append(False)
        self._make_room(1)
        self._tokens[self.num_tokens] = token_id
        self.num_tokens += 1

    def _make_room(self, count: int) -> None:
        """For more tokens."""
        if self.num_tokens + count > len(self._tokens):
            more = np.empty(max(1024, self.num_tokens, count), dtype=np.int32)
            self._tokens = np.concatenate([self._tokens, more])

    def expect(self) -> None:
        """Add a token that the step just launched will choose."""
        self.append(-1)
        self.num_pending += 1

    def land(self, token_id: int) -> None:
        """The oldest expected token is known."""
        self._tokens[self.num_known] = token_id
        self.num_pending -= 1

    def drop_pending(self) -> None:
        """Forget the expected tokens, and what was computed of them: it ended before them."""
        self.num_tokens -= self.num_pending
        del self.origins[self.num_generated :]
        self.num_pending = 0
        self.num_computed = min(self.num_computed, self.num_tokens)

    def replace(self, num_replaced: int, token_ids: list[int], origins: bytearray) -> None:
        """Put tokens that were not sampled in place of the last generated ones; `origins` has theirs, and may be
        longer. What is not computed is computed in one go, as a prompt is. The KV of what goes must have been given
        up."""
        self.num_tokens -= num_replaced
        del self.origins[self.num_generated :]
        del self.logprobs[max(0, len(self.logprobs) - num_replaced) :]
        self._make_room(len(token_ids))
        self._tokens[self.num_tokens : self.num_tokens + len(token_ids)] = token_ids
        self.num_tokens += len(token_ids)
        self.origins += origins[: len(token_ids)]
        known = self.num_tokens - self.num_computed > 1
        self.prefill_end = self.num_tokens if known else min(self.prefill_end, self.num_computed)

    def score_forced(self, entry: TokenLogprob) -> None:
        """The log-probability of the next token that a jump added. With the last one, all of them are told."""
        assert self.unscored is not None
        forced = self.origins[self.unscored - self.num_prompt]
        self.logprobs.append(replace(entry, masked=0.0 if forced else None))
        self.unscored += 1
        if self.unscored == self.num_known:
            self.release_held()

    def release_held(self) -> None:
        """Tell of forced tokens now; those that were not computed have no log-probability."""
        if self.held is None or self.unscored is None:
            return
        event, self.held = self.held, None
        rest = [TokenLogprob(int(token_id), None) for token_id in self.tokens[self.unscored : self.num_known]]
        self.unscored = None
        self.logprobs.extend(rest)
        self.handle.publish(replace(event, logprobs=tuple(self.logprobs[-len(event.token_ids) :])))

    def completion(self, *, is_cut: bool = False) -> Completion:
        """What it has produced; its output must be finished."""
        output = self.output
        assert output.finish_reason is not None
        now = time.perf_counter()
        start = self.request.logprob_start
        if start == 0:
            self.input_logprobs[0] = TokenLogprob(int(self._tokens[0]), None)
        return Completion(
            request_id=self.id,
            token_ids=tuple(output.token_ids),
            text=output.text,
            num_kept_tokens=output.num_kept_tokens,
            finish_reason=output.finish_reason,
            matched=output.matched,
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens or 0,
            was_scheduled=self.cached_tokens is not None,
            logprobs=tuple(self.logprobs),
            input_logprobs=tuple(entry for _, entry in sorted(self.input_logprobs.items())),
            queue_seconds=(self.first_scheduled or self.first_token or now) - self.submitted,
            first_token_seconds=None if self.first_token is None else self.first_token - self.submitted,
            total_seconds=now - self.submitted,
            num_forced_tokens=sum(self.origins),
            num_steps=self.num_sampled,
            grammar_engine=self.matcher.engine if self.matcher is not None else None,
            num_preemptions=self.num_preemptions,
            is_cut=is_cut,
            num_begun_tokens=self.num_begun,
        )
