"""Jump-forward: text that a grammar forces becomes tokens at once, without sampling.

The tokens are the tokenizer's own for the generated text and the forced text together. Where the text went over a
token boundary that the tokenizer would not have made, the last tokens are replaced; tokens that could still merge
with what follows are left to be sampled. So wherever the tokens sampled without it are the tokenizer's own, jumping
changes neither them nor the text. (The idea of jumping: arXiv 2312.07104, section 4.)
`plan_jump` knows tokens only; `JumpForward` carries a plan out on one of the engine's sequences.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lmnb.errors import GrammarError
from lmnb.runtime.request import TokenEvent
from lmnb.runtime.retokenize import Retokenizer, common_length, ends
from lmnb.runtime.scheduler import Scheduler
from lmnb.runtime.sequence import Sequence as EngineSequence
from lmnb.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Jump:
    """Replace the last `num_replaced` generated tokens by `token_ids`, which spell them and some text more."""

    num_replaced: int
    token_ids: list[int]


def plan_jump(
    retokenizer: Retokenizer, generated: Sequence[int], forced: bytes, blocked: Collection[int], room: int
) -> Jump | None:
    """What `forced`, the bytes that must follow the `generated` tokens, allows to be added now; None if nothing.

    The prompt's tokens are never touched. `blocked`: ids that must not be used. `room`: generated tokens that may be
    added at most.
    """
    start = retokenizer.window(generated)
    if start is None:
        return None
    old = list(generated[start:])
    before = retokenizer.bytes_of(old)
    text = _whole_characters(before + forced)
    if text is None or len(text.encode()) <= len(before):
        return None
    new = retokenizer.stable(text)
    new = new[: next((i for i, token in enumerate(new) if token in blocked), len(new))]
    if new[: len(old)] == old:
        new = new[len(old) : len(old) + room]
        return Jump(0, new) if new else None
    sizes = ends(len(retokenizer.bytes_of([token])) for token in new)
    if sizes[-1] <= len(before):
        return None
    kept = _num_kept(retokenizer, old, before, new, sizes)
    kept_bytes = len(retokenizer.bytes_of(old[:kept]))
    jump = Jump(len(old) - kept, new[sizes.index(kept_bytes) :])
    return jump if len(jump.token_ids) - jump.num_replaced <= room else None


def _num_kept(retokenizer: Retokenizer, old: list[int], before: bytes, new: list[int], sizes: list[int]) -> int:
    """How many of the `old` tokens stay. Not only those that `new` has too: what the model wrote in a way of its
    own stays as well, as far as the text behind it makes no difference to how it would be tokenized."""
    text = _whole_characters(before)
    base = retokenizer.encode(text) if text else None
    same = common_length(base or [], new)
    limit = sizes[same]
    boundaries = set(sizes)
    old_ends = ends(len(retokenizer.bytes_of([token])) for token in old)
    return max(i for i, end in enumerate(old_ends) if end <= limit and end in boundaries)


def _whole_characters(data: bytes) -> str | None:
    """`data` without an unfinished character at its end; None if it is no text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.start < len(data) - 3:
            return None
        return data[: error.start].decode()


class JumpForward:
    """Jumps for one engine. `prepare` may be called from any thread, the rest from the engine's only."""

    def __init__(self, tokenizer: Tokenizer, *, enabled: bool) -> None:
        self._tokenizer = tokenizer
        self._enabled = enabled
        self._lock = threading.Lock()
        self._retokenizer: Retokenizer | None = None
        self._blocked = tokenizer.added_ids | tokenizer.special_ids | tokenizer.eos_ids

    def prepare(self) -> None:
        """Build what jumping needs, if that has not been done."""
        with self._lock:
            if self._retokenizer is None:
                self._retokenizer = Retokenizer(self._tokenizer)

    def jump(self, sequence: EngineSequence, scheduler: Scheduler) -> TokenEvent | None:
        """Add what the sequence's grammar forces next. The event to publish; None if nothing was added.

        May finish the sequence's output. While log-probabilities are asked for, it never does, and replaces
        nothing: each forced token's logits must still come.
        """
        plan = self._plan(sequence)
        if plan is None:
            return None
        matcher, output, params = sequence.matcher, sequence.output, sequence.request.sampling
        assert matcher is not None
        assert self._retokenizer is not None
        replaced, new = plan.num_replaced, plan.token_ids
        matcher.rollback(replaced)
        for token_id in new:
            if not matcher.accept(token_id):
                raise GrammarError("the grammar refused text that it had forced itself")
        scores = params.return_logprob or params.top_logprobs_num > 0
        if scores and (matcher.is_done() or len(new) == params.max_new_tokens - len(output.token_ids)):
            matcher.rollback(1)
            new = new[:-1]
            if not new:
                return None
        position = sequence.num_tokens - replaced
        scheduler.rewind(sequence, position)
        gone = output.token_ids[len(output.token_ids) - replaced :]
        text = output.replace(replaced, new, [self._retokenizer.bytes_of([token_id]) for token_id in new])
        new = output.token_ids[len(output.token_ids) - self._num_taken(sequence, replaced) :]
        for token_id in reversed(gone):
            sequence.draw.pop(token_id)
        for token_id in new:
            sequence.draw.push(token_id)
        sequence.replace(replaced, new)
        if matcher.is_done():
            text += output.finish("stop")
        event = TokenEvent(sequence.id, tuple(new), text, (), "forced", replaced)
        if not scores:
            return event
        sequence.unscored, sequence.held = position, event
        return None

    def _num_taken(self, sequence: EngineSequence, replaced: int) -> int:
        return len(sequence.output.token_ids) - (sequence.num_generated - replaced)

    def _plan(self, sequence: EngineSequence) -> Jump | None:
        params = sequence.request.sampling
        wanted = self._enabled if params.jump_forward is None else params.jump_forward
        if sequence.matcher is None or not wanted or self._retokenizer is None:
            return None
        scores = params.return_logprob or params.top_logprobs_num > 0
        if scores and (params.stop or params.stop_regex):
            return None
        room = params.max_new_tokens - len(sequence.output.token_ids)
        forced = sequence.matcher.forced() if room > 0 else b""
        if not forced:
            return None
        blocked = self._blocked | frozenset(params.suppress_token_ids)
        plan = plan_jump(self._retokenizer, sequence.output.token_ids, forced, blocked, room)
        return None if plan is not None and plan.num_replaced and scores else plan
