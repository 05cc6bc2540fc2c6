"""Jump-forward: text that a grammar forces becomes tokens at once, without sampling.

The tokens are the tokenizer's own for the generated text and the forced text together. Where the text went over a
token boundary that the tokenizer would not have made, the last tokens are replaced; tokens that could still merge
with what the grammar lets follow are left to be sampled. So wherever the tokens sampled without it are the
tokenizer's own, jumping changes neither them nor the text. (The idea of jumping: arXiv 2312.07104, section 4.)
Without jumps the same tokens come one step each, so that switching jumps on or off changes no token at all.
`jump_plan` says which tokens; `JumpForward` adds them to one of the engine's sequences.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lmnb.runtime.constraint_size import too_large
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.jump_plan import Jump, JumpPlanner
from lmnb.runtime.next_bytes import Behind, NextBytes
from lmnb.runtime.request import TokenEvent
from lmnb.runtime.retokenize import Retokenizer
from lmnb.runtime.scheduler import Scheduler
from lmnb.runtime.sequence import Sequence as EngineSequence
from lmnb.runtime.tokenizer import Tokenizer

_NUM_PLANS, _MOST_SHARED = 256, 64  # plans that are remembered, and tokens that requests may have written before


class _Plan(NamedTuple):
    """`mask`: that of the choice behind all that is forced, if it had to be known; `ahead`: a matcher that has followed
    the jump, if there is one to spare."""

    jump: Jump | None
    mask: np.ndarray | None
    ahead: GrammarMatcher | None


_NO_PLAN = _Plan(None, None, None)


class JumpTables:
    """What is known of a vocabulary of `vocab_size` tokens, the width of the model's logits. Building it takes a
    fraction of a second: `prepare`, which may be called from any thread, as often as one likes."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._lock = threading.Lock()
        self.retokenizer: Retokenizer | None = None
        self.planner: JumpPlanner | None = None
        self.next_bytes: NextBytes | None = None

    def prepare(self) -> None:
        """Build what is needed, if that has not been done."""
        with self._lock:
            if self.retokenizer is None:
                self.next_bytes = NextBytes(self._tokenizer, self._vocab_size)
                retokenizer = Retokenizer(self._tokenizer, self._vocab_size)
                self.planner = JumpPlanner(retokenizer)
                self.retokenizer = retokenizer


class JumpForward:
    """Forced text for one engine. `prepare` may be called from any thread, the rest from the engine's only.

    `enabled`: forced tokens are added at once; else each takes a step, whose mask allows no other. `plain`: neither;
    masks allow all that the grammar does, and the model chooses how to write what is forced.
    """

    def __init__(self, tokenizer: Tokenizer, tables: JumpTables, *, enabled: bool, plain: bool = False) -> None:
        self._enabled = enabled
        self._plain = plain
        self._tables = tables
        self._plans: OrderedDict[Hashable, _Plan] = OrderedDict()  # oldest use first
        self._blocked = tokenizer.added_ids | tokenizer.special_ids | tokenizer.eos_ids

    def prepare(self) -> None:
        """Build the tables, if that has not been done."""
        self._tables.prepare()

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` has nothing left to do."""
        return self._tables.retokenizer is not None

    def tokens_of(self, text: str, kept: list[int]) -> list[int] | None:
        """Tokens of a generated text, of which the `kept` ones spell the beginning; None if none spell it."""
        assert self._tables.retokenizer is not None
        rest = text.encode()[len(self._tables.retokenizer.bytes_of(kept)) :]
        others = self._tables.retokenizer.encode(rest.decode(errors="replace"))
        return None if others is None else [*kept, *others]

    def jump(self, sequence: EngineSequence, scheduler: Scheduler) -> TokenEvent | None:
        """Add what the sequence's grammar forces next. The event to publish; None if nothing was added, or if its
        log-probabilities must come first (`Sequence.held`). May finish the sequence's output."""
        params = sequence.request.sampling
        jumps = self._enabled if params.jump_forward is None else params.jump_forward
        if sequence.planned:
            sequence.planned.popleft()  # the token that has just been chosen; the plan goes on as it would be made anew
            if sequence.planned or not jumps:
                return None
        plan, sequence.mask_behind, ahead = self._plan(sequence)
        if plan is None:
            return None
        end = len(plan.token_ids)
        count = end if jumps else plan.num_needed
        if jumps and _must_choose(sequence):
            count, end = plan.num_needed, plan.num_needed + 1
        event = None
        if count:
            if count == len(plan.token_ids) and ahead is not None:
                sequence.matcher = ahead
            else:
                self._accept(sequence, plan.num_replaced, plan.token_ids[:count])
            event = self._apply(sequence, scheduler, plan.num_replaced, plan.token_ids[:count])
        if not sequence.output.finished:
            sequence.planned.extend(plan.token_ids[count:end])
        if event is None or sequence.draw.num_logprobs < 0:
            return event
        sequence.unscored, sequence.held = sequence.num_tokens - len(event.token_ids), event
        return None

    def _accept(self, sequence: EngineSequence, replaced: int, new: Sequence[int]) -> None:
        """Let the sequence's matcher follow `new` in place of the last `replaced` tokens."""
        matcher, constraint = sequence.matcher, sequence.request.sampling.constraint
        assert matcher is not None
        assert constraint is not None
        matcher.rollback(replaced)
        if not matcher.follow(new):
            raise too_large(constraint)

    def _apply(self, sequence: EngineSequence, scheduler: Scheduler, replaced: int, new: Sequence[int]) -> TokenEvent:
        """Put `new` in place of the last `replaced` tokens, everywhere but in the matcher."""
        matcher, output = sequence.matcher, sequence.output
        assert matcher is not None
        assert self._tables.retokenizer is not None
        # The logits of the token before the replaced ones say how likely the first new one is.
        scored = replaced > 0 and sequence.draw.num_logprobs >= 0
        scheduler.rewind(sequence, sequence.num_tokens - replaced - scored)
        kept = len(output.token_ids) - replaced
        old = output.token_ids[kept:]
        origins = self._origins(old, sequence.origins[kept : kept + replaced], new)
        text = output.replace(replaced, new, self._tables.retokenizer.pieces(new))
        taken = output.token_ids[kept:]  # fewer than `new` if a stop was met
        sequence.draw.replace(old, taken)
        sequence.replace(replaced, taken, origins)
        if matcher.is_done():
            text += output.finish("stop")
        return TokenEvent(sequence.id, tuple(taken), text, (), "forced", replaced)

    def _origins(self, old: list[int], origins: bytearray, new: Sequence[int]) -> bytearray:
        """As `Sequence.origins` of the `new` tokens that stand in for the `old` ones, whose origins are known: forced
        is what holds no text of a sampled one."""
        assert self._tables.retokenizer is not None
        if not old:
            return bytearray(b"\1" * len(new))
        pieces = self._tables.retokenizer.pieces(old)
        marks = b"".join(bytes((mark,)) * len(piece) for piece, mark in zip(pieces, origins, strict=True))
        return bytearray(all(marks[start:end]) for start, end in pairwise(self._tables.retokenizer.ends(new)))

    def _plan(self, sequence: EngineSequence) -> _Plan:
        """What is forced next. Requests that have written the same under one constraint share it."""
        params, matcher, planner = sequence.request.sampling, sequence.matcher, self._tables.planner
        if matcher is None or self._plain or planner is None:
            return _NO_PLAN
        written = sequence.output.token_ids
        if len(written) > _MOST_SHARED:
            return self._make_plan(sequence, matcher, planner)
        key = (params.constraint, params.suppress_token_ids, params.max_new_tokens, *written)
        known = self._plans.get(key)
        if known is not None:
            self._plans.move_to_end(key)
            return known
        made = self._make_plan(sequence, matcher, planner)
        self._plans[key] = made._replace(ahead=None)
        if len(self._plans) > _NUM_PLANS:
            self._plans.popitem(last=False)
        return made

    def _make_plan(self, sequence: EngineSequence, matcher: GrammarMatcher, planner: JumpPlanner) -> _Plan:
        params, written = sequence.request.sampling, sequence.output.token_ids
        room = params.max_new_tokens - len(written)
        forced = matcher.forced() if room > 0 else b""
        if not forced:
            return _NO_PLAN
        blocked = self._blocked | frozenset(params.suppress_token_ids) if params.suppress_token_ids else self._blocked
        asked: list[tuple[Jump, GrammarMatcher, Behind]] = []
        plan = planner.plan(written, forced, blocked, room, partial(self._following, sequence, matcher, asked))
        if plan is None or not plan.is_whole or not asked:
            return _Plan(plan, None, None)
        whole, ahead, behind = asked[0]
        return _Plan(plan, behind.mask, ahead if plan == whole else None)

    def _following(
        self,
        sequence: EngineSequence,
        matcher: GrammarMatcher,
        asked: list[tuple[Jump, GrammarMatcher, Behind]],
        whole: Jump,
    ) -> Collection[int] | None:
        """What may come behind `whole`, also put into `asked`, with a matcher that has followed it. A mask is computed
        for it, so it counts as the grammar's time."""
        assert self._tables.next_bytes is not None
        began = time.thread_time()
        ahead = matcher.fork()
        ahead.rollback(whole.num_replaced)
        found = self._tables.next_bytes.behind(ahead) if ahead.follow(whole.token_ids) else None
        sequence.grammar_seconds += time.thread_time() - began
        if found is None:
            return None
        asked.append((whole, ahead, found))
        return found.first


def _must_choose(sequence: EngineSequence) -> bool:
    """Whether the next token takes a step though it is forced: the prompt's log-probabilities are asked for, and it
    might never be computed else. (Where those of forced tokens are too, it is.)"""
    asked = sequence.request.logprob_start is not None and sequence.draw.num_logprobs < 0
    return asked and sequence.num_computed < sequence.num_prompt
