"""Jump-forward: text that a grammar forces becomes tokens at once, without sampling.

The tokens are the tokenizer's own for the generated text and the forced text together. Where the text went over a
token boundary that the tokenizer would not have made, the last tokens are replaced; tokens that could still merge
with what the grammar lets follow are left to be sampled. So wherever the tokens sampled without it are the
tokenizer's own, jumping changes neither them nor the text. (The idea of jumping: arXiv 2312.07104, section 4.)
Without jumps the same tokens come one step each, so that switching jumps on or off changes no token at all.
`plan_jump` knows tokens only; `JumpForward` carries a plan out on one of the engine's sequences.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from lmnb.runtime.constraint_size import too_large
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.next_bytes import Behind, NextBytes
from lmnb.runtime.request import TokenEvent
from lmnb.runtime.retokenize import Following, Retokenizer, common_length
from lmnb.runtime.scheduler import Scheduler
from lmnb.runtime.sequence import Sequence as EngineSequence
from lmnb.runtime.tokenizer import Tokenizer

_NUM_PLANS, _MOST_SHARED = 256, 64  # plans that are remembered, and tokens that requests may have written before


@dataclass(frozen=True, slots=True)
class Jump:
    """Replace the last `num_replaced` generated tokens by `token_ids`, which spell them and some text more."""

    num_replaced: int
    token_ids: list[int]


def plan_jump(
    retokenizer: Retokenizer,
    generated: Sequence[int],
    forced: bytes,
    blocked: Collection[int],
    room: int,
    following: Following | None = None,
) -> Jump | None:
    """What `forced`, the bytes that must follow the `generated` tokens, allows to be added now; None if nothing.

    The prompt's tokens are never touched. `blocked`: ids that must not be used. `room`: generated tokens that may be
    added at most. `following`: what may come behind `forced`.
    """
    start = retokenizer.window(generated)
    if start is None:
        return None
    old = list(generated[start:])
    before = retokenizer.bytes_of(old)
    text = _whole_characters(before + forced)
    if text is None or len(text.encode()) <= len(before):
        return None
    begun = (before + forced)[len(text.encode()) :]  # a character's first bytes
    new = retokenizer.stable(text, (lambda: begun[:1]) if begun else following)
    new = new[: next((i for i, token in enumerate(new) if token in blocked), len(new))]
    if new[: len(old)] == old:
        new = new[len(old) : len(old) + room]
        return Jump(0, new) if new else None
    sizes = retokenizer.ends(new)
    if sizes[-1] <= len(before):
        return None
    kept = _num_kept(retokenizer, old, before, new, sizes)
    first = sizes.index(len(retokenizer.bytes_of(old[:kept])))
    num_replaced = len(old) - kept
    last = min(len(new), first + num_replaced + room)
    return Jump(num_replaced, new[first:last]) if sizes[last] >= len(before) else None


def _num_kept(retokenizer: Retokenizer, old: list[int], before: bytes, new: list[int], sizes: list[int]) -> int:
    """How many of the `old` tokens stay. Not only those that `new` has too: what the model wrote in a way of its
    own stays as well, as far as the text behind it makes no difference to how it would be tokenized."""
    text = _whole_characters(before)
    base = retokenizer.encode(text) if text else None
    same = common_length(base or [], new)
    limit = sizes[same]
    boundaries = set(sizes)
    return max(i for i, end in enumerate(retokenizer.ends(old)) if end <= limit and end in boundaries)


def _whole_characters(data: bytes) -> str | None:
    """`data` without an unfinished character at its end; None if it is no text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.start < len(data) - 3:
            return None
        return data[: error.start].decode()


class JumpTables:
    """What is known of a vocabulary of `vocab_size` tokens, the width of the model's logits. Building it takes a
    fraction of a second: `prepare`, which may be called from any thread, as often as one likes."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._lock = threading.Lock()
        self.retokenizer: Retokenizer | None = None
        self.next_bytes: NextBytes | None = None

    def prepare(self) -> None:
        """Build what is needed, if that has not been done."""
        with self._lock:
            if self.retokenizer is None:
                self.next_bytes = NextBytes(self._tokenizer, self._vocab_size)
                self.retokenizer = Retokenizer(self._tokenizer, self._vocab_size)


class JumpForward:
    """Forced text for one engine. `prepare` may be called from any thread, the rest from the engine's only.

    `enabled`: forced tokens are added at once; else each takes a step, whose mask allows no other. `plain`: neither;
    masks allow all that the grammar does, and the model chooses how to write what is forced.
    """

    def __init__(self, tokenizer: Tokenizer, tables: JumpTables, *, enabled: bool, plain: bool = False) -> None:
        self._enabled = enabled
        self._plain = plain
        self._tables = tables
        self._plans: OrderedDict[Hashable, tuple[Jump | None, np.ndarray | None]] = OrderedDict()  # oldest use first
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
        if sequence.planned:
            sequence.planned.popleft()  # the token that has just been chosen; the plan goes on as it would be made anew
            return None
        plan, sequence.mask_behind = self._plan(sequence)
        if plan is None:
            return None
        params = sequence.request.sampling
        jumps = self._enabled if params.jump_forward is None else params.jump_forward
        count = len(plan.token_ids) if jumps else self._num_needed(sequence, plan)
        event = self._apply(sequence, scheduler, plan.num_replaced, plan.token_ids[:count]) if count else None
        if not sequence.output.finished:
            sequence.planned.extend(plan.token_ids[count:])
        if event is None or sequence.draw.num_logprobs < 0:
            return event
        sequence.unscored, sequence.held = sequence.num_tokens - len(event.token_ids), event
        return None

    def _num_needed(self, sequence: EngineSequence, plan: Jump) -> int:
        """How many of the plan's tokens it takes to spell the replaced ones."""
        assert self._tables.retokenizer is not None
        ids = sequence.output.token_ids
        missing = len(self._tables.retokenizer.bytes_of(ids[len(ids) - plan.num_replaced :]))
        sizes = self._tables.retokenizer.ends(plan.token_ids)
        return next(i for i, size in enumerate(sizes) if size >= missing)

    def _apply(self, sequence: EngineSequence, scheduler: Scheduler, replaced: int, new: list[int]) -> TokenEvent:
        """Put `new` in place of the last `replaced` tokens, everywhere."""
        matcher, output, constraint = sequence.matcher, sequence.output, sequence.request.sampling.constraint
        assert matcher is not None
        assert constraint is not None
        assert self._tables.retokenizer is not None
        matcher.rollback(replaced)
        if not matcher.accept_all(new):
            raise too_large(constraint)
        # The logits of the token before the replaced ones say how likely the first new one is.
        scored = replaced > 0 and sequence.draw.num_logprobs >= 0
        scheduler.rewind(sequence, sequence.num_tokens - replaced - scored)
        kept = len(output.token_ids) - replaced
        origins = self._origins(output.token_ids[kept:], sequence.origins[kept : kept + replaced], new)
        for token_id in reversed(output.token_ids[kept:]):
            sequence.draw.pop(token_id)
        text = output.replace(replaced, new, self._tables.retokenizer.pieces(new))
        taken = output.token_ids[kept:]  # fewer than `new` if a stop was met
        for token_id in taken:
            sequence.draw.push(token_id)
        sequence.replace(replaced, taken, origins)
        if matcher.is_done():
            text += output.finish("stop")
        return TokenEvent(sequence.id, tuple(taken), text, (), "forced", replaced)

    def _origins(self, old: list[int], origins: bytearray, new: list[int]) -> bytearray:
        """As `Sequence.origins` of the `new` tokens that stand in for the `old` ones, whose origins are known: forced
        is what holds no text of a sampled one."""
        assert self._tables.retokenizer is not None
        if not old:
            return bytearray(b"\1" * len(new))
        pieces = self._tables.retokenizer.pieces(old)
        marks = b"".join(bytes((mark,)) * len(piece) for piece, mark in zip(pieces, origins, strict=True))
        return bytearray(all(marks[start:end]) for start, end in pairwise(self._tables.retokenizer.ends(new)))

    def _plan(self, sequence: EngineSequence) -> tuple[Jump | None, np.ndarray | None]:
        """What is forced next, and the mask of the choice behind it, if that had to be known. Requests that have
        written the same under one constraint share it."""
        params, retokenizer = sequence.request.sampling, self._tables.retokenizer
        if sequence.matcher is None or self._plain or retokenizer is None:
            return None, None
        written = sequence.output.token_ids
        if len(written) > _MOST_SHARED:
            return self._make_plan(sequence, sequence.matcher, retokenizer)
        key = (params.constraint, params.suppress_token_ids, params.max_new_tokens, *written)
        if key in self._plans:
            self._plans.move_to_end(key)
        else:
            self._plans[key] = self._make_plan(sequence, sequence.matcher, retokenizer)
            if len(self._plans) > _NUM_PLANS:
                self._plans.popitem(last=False)
        return self._plans[key]

    def _make_plan(
        self, sequence: EngineSequence, matcher: GrammarMatcher, retokenizer: Retokenizer
    ) -> tuple[Jump | None, np.ndarray | None]:
        params, written = sequence.request.sampling, sequence.output.token_ids
        room = params.max_new_tokens - len(written)
        forced = matcher.forced() if room > 0 else b""
        if not forced:
            return None, None
        blocked = self._blocked | frozenset(params.suppress_token_ids) if params.suppress_token_ids else self._blocked
        asked: list[Behind] = []
        following = partial(self._following, sequence, forced, asked)
        plan = plan_jump(retokenizer, written, forced, blocked, room, following)
        if plan is None or not asked:
            return plan, None
        replaced = retokenizer.bytes_of(written[len(written) - plan.num_replaced :])
        is_whole = len(retokenizer.bytes_of(plan.token_ids)) == len(replaced) + len(forced)
        return plan, asked[0].mask if is_whole else None

    def _following(self, sequence: EngineSequence, forced: bytes, asked: list[Behind]) -> Collection[int] | None:
        """What may come behind `forced`, also put into `asked`. A mask is computed for it, so it counts as the
        grammar's time."""
        assert self._tables.next_bytes is not None
        assert sequence.matcher is not None
        began = time.thread_time()
        found = self._tables.next_bytes.after(sequence.matcher, forced)
        sequence.grammar_seconds += time.thread_time() - began
        if found is None:
            return None
        asked.append(found)
        return found.first
