"""One state's prompt on the local engine, as token ids: text, roles, generation and scoring.

It knows nothing of programs, variables or views.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lmnb.backends.base import (
    CancelToken,
    ChoiceScore,
    Context,
    Delta,
    Generation,
    Owner,
    PromptToken,
    Scores,
    TokenSource,
)
from lmnb.backends.engine_task import EngineTask
from lmnb.backends.joined_prompt import Prompt, joined
from lmnb.backends.prefix import common_prefix_length
from lmnb.backends.scoring import ChoicePlan, plan_choices
from lmnb.backends.served import Served
from lmnb.backends.token_stream import TokenStream
from lmnb.backends.turns import Turns, gathered
from lmnb.errors import ArgumentError, CancelledError, TemplateError
from lmnb.runtime.prompt_layout import PLAIN, PromptLayout, Section, merged
from lmnb.runtime.request import Completion, Constraint, FinishEvent, Request, SamplingParams, TokenEvent

if TYPE_CHECKING:
    pass


_NOTHING = SamplingParams(max_new_tokens=0)
_MANY_CHOICES = 64  # more are tokenized beside the loop, which all runs share


class LocalContext:
    """Implements `Context`. Outside of roles, text is the program's own and tokenized as usual; inside a role it
    is data. What was generated stays as the tokens that were sampled."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._stream = TokenStream(served.codec, served.engine.capacity)
        self._history: tuple[str, ...] = ()
        self._role: str | None = None
        self._num_committed = 0
        self._layout = PLAIN
        self._forked_ids: tuple[int, ...] = ()  # the prompt it was forked with

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The whole prompt; the tokenizer's beginning token is added unless the text or template brought it.
        RequestTooLongError if it is longer than the engine can take, and so was not read to its end."""
        if self._stream.overflowed:
            raise self._served.engine.too_long()
        ids = self._stream.ids
        bos = self._served.codec.tokenizer.bos_ids
        return ids if ids[: len(bos)] == bos else bos + ids

    def tokens(self) -> list[PromptToken]:
        """See `TokenContext.tokens`."""
        ids = self.token_ids
        sources = self._stream.sources
        template: TokenSource = "template"
        added = (template,) * (len(ids) - len(sources))  # the tokenizer's own beginning
        texts = [self._served.codec.token_bytes(i).decode("utf-8", errors="backslashreplace") for i in ids]
        sections = self._layout.behind(len(added)).sections
        num_plain = sections[0].start if sections else len(ids)
        plain = [index < num_plain for index in range(len(ids))]
        return [PromptToken(*token) for token in zip(texts, ids, added + sources, plain, strict=True)]

    def append(self, text: str, *, data: bool = False) -> None:
        """See `Context.append`."""
        self._stream.append(text, trusted=self._role is None and not data, source="generated" if data else "given")

    def begin_role(self, role: str) -> str:
        """See `Context.begin_role`."""
        if self._role is not None:
            raise TemplateError(f"cannot open role {role!r} inside role {self._role!r}: close that one first")
        text = self._served.template.begin(self._history, role)
        self._role = role
        self._stream.append(text, trusted=True, source="template")
        return text

    def end_role(self) -> str:
        """See `Context.end_role`."""
        if self._role is None:
            raise TemplateError("no role is open that could be closed")
        text = self._served.template.end(self._history, self._role)
        self._history += (self._role,)
        self._role = None
        self._stream.append(text, trusted=True, source="template")
        return text

    def fork(self) -> LocalContext:
        """See `Context.fork`."""
        twin = LocalContext(self._served)
        twin._stream = self._stream.fork()
        twin._history = self._history
        twin._role = self._role
        twin._num_committed = self._num_committed
        twin._layout = self._layout
        twin._forked_ids = self._stream.ids
        return twin

    def checkpoint(self) -> Callable[[], LocalContext]:
        """See `ResumableContext.checkpoint`: notes a place, and copies nothing until it is gone back to."""
        mark, history, role = self._stream.mark(), self._history, self._role
        layout, forked_ids = self._layout, self._forked_ids

        def restore() -> LocalContext:
            twin = self.fork()
            twin._stream = self._stream.at(mark)
            twin._history, twin._role = history, role
            twin._layout, twin._forked_ids = layout, forked_ids
            twin._num_committed = 0
            return twin

        return restore

    @property
    def vocab_size(self) -> int:
        """See `ResumableContext.vocab_size`."""
        return self._served.codec.tokenizer.vocab_size

    def encode_more(self, text: str) -> tuple[int, ...]:
        """See `ResumableContext.encode_more`."""
        return tuple(self._served.codec.encode_inside(text))

    async def ruled_out(self, constraint: Constraint, begun: Sequence[int], ids: Sequence[int]) -> frozenset[int]:
        """See `ResumableContext.ruled_out`."""
        return await asyncio.to_thread(self._served.engine.ruled_out, constraint, begun, ids)

    async def logprob_of(self, ids: tuple[int, ...], *, owner: Owner, cancel: CancelToken) -> float | None:
        """See `ResumableContext.logprob_of`."""
        before = self.prompt_ids
        whole = before + ids
        request = self._request(whole, _NOTHING, owner, len(whole) - 1, len(before) - len(self._stream))
        (completion,) = await self._run_all([request], cancel)
        return completion.input_logprobs[-1].logprob

    def fork_moved(self, offset: int) -> LocalContext:
        """See `ConcatenatingContext.fork_moved`."""
        twin = self.fork()
        start = len(twin._stream)
        position = twin._layout.end_position(start) + offset
        if position < 0:
            raise ArgumentError(f"position_ids_offset {offset} would move a branch before the prompt's beginning")
        twin._stream.fix(start, (), ())
        twin._layout = PromptLayout.of([*twin._layout.sections, Section(start, position, merged([(0, start)]))])
        return twin

    async def concatenate(self, branches: Sequence[Context], *, owner: Owner, cancel: CancelToken) -> None:
        """See `ConcatenatingContext.concatenate`. The branches are computed where they are not; the joined prompt
        copies their keys and values when something is first asked of it."""
        contexts = [branch for branch in branches if isinstance(branch, LocalContext)]

        async def compute(index: int) -> bool:
            context = contexts[index]
            return await context._compute(context.prompt_ids, owner, cancel)

        await gathered(len(contexts), compute, lambda: not cancel.cancelled)
        mine = self._prompt
        whole = joined(mine, [(context._prompt, context._forked_ids) for context in contexts], self._served.codec)
        start = common_prefix_length([mine.ids, whole.ids])
        self._stream.fix(start, whole.ids[start:], whole.sources[start:])
        self._layout = whole.layout

    @property
    def _prompt(self) -> Prompt:
        return Prompt(self._stream.ids, self._stream.sources, self._layout)

    async def commit(self, *, owner: Owner, cancel: CancelToken) -> None:
        """See `Context.commit`. Spaces at the end are left out: the tokenizer joins them with the word that follows."""
        if len(self._stream) == self._num_committed or cancel.cancelled:
            return
        ids = self.prompt_ids
        if self._layout is PLAIN:
            end = len(ids)
            while end > 1 and not self._served.codec.token_bytes(ids[end - 1]).strip(b" "):
                end -= 1
            ids = ids[:end]
        if await self._compute(ids, owner, cancel):
            self._num_committed = len(self._stream)

    async def _compute(self, ids: tuple[int, ...], owner: Owner, cancel: CancelToken) -> bool:
        """Have the engine read these first tokens of the prompt, which leaves them in the radix cache; False if it was
        cancelled."""
        num_before = len(self.prompt_ids) - len(self._stream)
        request = self._request(ids, _NOTHING, owner, num_before=num_before)
        finish = await EngineTask(self._served.engine, request, cancel).finish()
        if finish.error is not None:
            raise finish.error
        return finish.completion.finish_reason != "cancelled"

    async def generate(
        self,
        params: SamplingParams,
        *,
        owner: Owner,
        cancel: CancelToken,
        on_delta: Callable[[Delta], None],
        logprob_start: int | None = None,
        begun: tuple[int, ...] = (),
    ) -> Generation:
        """See `Context.generate` and `ResumableContext`. An error is the engine's own; what was generated before it
        stays.

        `logprob_start` counts in `token_ids`.
        """
        if cancel.cancelled:
            return Generation(text="", finish_reason="cancelled")

        def pass_on(event: TokenEvent) -> None:
            num_tokens = len(event.token_ids) - event.num_replaced
            on_delta(Delta(event.text, num_tokens, event.logprobs, event.origin, event.token_ids, event.num_replaced))

        request = self._request(self.prompt_ids, self._served.sampling(params), owner, logprob_start, begun=begun)
        finish = await EngineTask(self._served.engine, request, cancel, pass_on).finish()
        self._adopt(finish.completion)
        if finish.error is not None:
            raise finish.error
        return _generation(finish.completion)

    async def score(self, choices: Sequence[str], *, unconditional: bool, owner: Owner, cancel: CancelToken) -> Scores:
        """See `Context.score`, and `plan_choices` for what happens where prompt and choice join.

        `unconditional` scores the reported ids alone, behind the tokenizer's beginning token if it has one
        (else the first entry is None).
        """
        at_mark = self._role is not None and self._stream.last_source == "template"
        if self._stream.overflowed:
            raise self._served.engine.too_long()
        stream = self._stream.fork()
        stream.limit = None  # a choice is read to its end
        planned = partial(plan_choices, trusted=self._role is None, turn_start=at_mark)
        if len(choices) > _MANY_CHOICES:
            plans = await asyncio.to_thread(planned, stream, choices, self._served.codec)
        else:
            plans = planned(stream, choices, self._served.codec)
        bos = self._served.codec.tokenizer.bos_ids
        requests = [self._choice_request(plan, owner) for plan in plans]
        if unconditional:
            requests += [
                Request(input_ids=bos + plan.choice_ids, logprob_start=len(bos), sampling=_NOTHING, owner=owner)
                for plan in plans
            ]
        completions = await self._run_all(requests, cancel)
        scores = []
        for index, (choice, plan) in enumerate(zip(choices, plans, strict=True)):
            alone = completions[len(plans) + index].input_logprobs if unconditional else ()
            scores.append(ChoiceScore(choice, plan.logprobs(completions[index]), alone))
        return Scores(
            tuple(scores),
            prompt_tokens=sum(completion.prompt_tokens for completion in completions),
            cached_tokens=sum(completion.cached_tokens for completion in completions),
            seconds=max(completion.total_seconds for completion in completions),
        )

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """`token_ids`, or what an empty prompt starts from. ArgumentError if there is nothing to start from."""
        ids = self.token_ids or self._served.start_ids
        if not ids:
            raise ArgumentError("the prompt is empty and this model has no token to start from: append some text first")
        return ids

    def _choice_request(self, plan: ChoicePlan, owner: Owner) -> Request:
        """The first scored token needs something before it."""
        bos = self._served.codec.tokenizer.bos_ids
        before = () if plan.ids[: len(bos)] == bos else bos
        if not before and plan.start == 0:
            before = self._served.start_ids
        return self._request(before + plan.ids, _NOTHING, owner, len(before) + plan.start, len(before))

    def _request(
        self,
        ids: tuple[int, ...],
        sampling: SamplingParams,
        owner: Owner,
        logprob_start: int | None = None,
        num_before: int | None = None,
        begun: tuple[int, ...] = (),
    ) -> Request:
        """A request for this prompt, whose own tokens begin behind `num_before` (by default: what `prompt_ids`
        puts there)."""
        if num_before is None:
            num_before = len(ids) - len(self._stream)
        return Request(
            input_ids=ids,
            begun_ids=begun,
            sampling=sampling,
            logprob_start=logprob_start,
            owner=owner,
            layout=self._layout.behind(num_before),
        )

    async def _run_all(self, requests: Sequence[Request], cancel: CancelToken) -> list[Completion]:
        """All at once: they share their prefix in the cache. The first failure cancels the others."""
        stop = CancelToken()
        forget = cancel.on_cancel(stop.cancel)
        try:
            tasks, turns = [], Turns()
            for request in requests:
                tasks.append(EngineTask(self._served.engine, request, stop))
                await turns.pause()
                if cancel.cancelled:
                    break
            finishes: list[FinishEvent] = await asyncio.gather(*(task.finish() for task in tasks))
        finally:
            forget()
            stop.cancel()
        for finish in finishes:
            if finish.error is not None:
                raise finish.error
        if len(tasks) < len(requests) or any(f.completion.finish_reason == "cancelled" for f in finishes):
            raise CancelledError("the choice was not made because its run was stopped")
        return [finish.completion for finish in finishes]

    def _adopt(self, completion: Completion) -> None:
        """Append what was generated: tokens as far as they are exactly the text, then the text's rest as data."""
        kept = completion.token_ids[: completion.num_kept_tokens]
        text = self._served.codec.bytes_of(kept).decode("utf-8", errors="replace")
        if not completion.text.startswith(text):  # a tokenizer whose tokens do not join to its text
            kept, text = (), ""
        self._stream.append_ids(kept)
        self._stream.append(completion.text[len(text) :], source="generated")


def _generation(completion: Completion) -> Generation:
    return Generation(
        text=completion.text,
        finish_reason=completion.finish_reason,
        matched=completion.matched,
        prompt_tokens=completion.prompt_tokens + completion.num_begun_tokens,
        cached_tokens=completion.cached_tokens,
        read_prompt=completion.was_scheduled,
        completion_tokens=completion.completion_tokens - completion.num_begun_tokens,
        first_token_seconds=completion.first_token_seconds,
        total_seconds=completion.total_seconds,
        logprobs=completion.logprobs,
        input_logprobs=completion.input_logprobs,
        meta={
            "id": completion.request_id,
            "queue_seconds": completion.queue_seconds,
            "num_preemptions": completion.num_preemptions,
            **_grammar_meta(completion),
        },
    )


def _grammar_meta(completion: Completion) -> dict[str, Any]:
    """What a constraint did: the library that enforced it, and the tokens of whose text it forced all."""
    if completion.grammar_engine is None:
        return {}
    return {
        "grammar_backend": completion.grammar_engine,
        "cut": completion.is_cut,
        "forced_tokens": completion.num_forced_tokens,
        "steps": completion.num_steps,
        "steps_saved": max(0, completion.completion_tokens - completion.num_steps),
    }
