"""The requests that an engine has taken and not ended: each is told of its tokens, and of its end.

Used by the engine's thread; it starts no step and touches no device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Event

from lmnb.errors import GenerationError, GrammarError, LmnbError
from lmnb.runtime.batch_builder import BuiltBatch, PromptSpan
from lmnb.runtime.begun import take_begun
from lmnb.runtime.compile_pool import CompilePool, untimed
from lmnb.runtime.config import EngineLimits
from lmnb.runtime.constraint_size import too_large, too_slow
from lmnb.runtime.grammar_protocol import GrammarCompiler, GrammarMatcher
from lmnb.runtime.handle import RequestHandle
from lmnb.runtime.jump_forward import JumpForward
from lmnb.runtime.memory import in_plain_words
from lmnb.runtime.messages import Compiled, Submit
from lmnb.runtime.output_stream import OutputStream
from lmnb.runtime.pending_tokens import SampledTokens
from lmnb.runtime.recovery import accepts
from lmnb.runtime.request import (
    Completion,
    Constraint,
    FinishEvent,
    FinishReason,
    Origin,
    Request,
    TokenEvent,
    TokenLogprob,
)
from lmnb.runtime.rows import Row
from lmnb.runtime.sampler_row import SamplerRow
from lmnb.runtime.scheduler import Scheduler
from lmnb.runtime.sequence import Sequence
from lmnb.runtime.tokenizer import Tokenizer

_MOST_REHEARSAL_SECONDS = 60.0  # compiling all that it brings about takes some ten


class LiveRequests:
    """`put` hands a message to the engine's thread. Constrained requests begin when `rehearsed` is set."""

    def __init__(
        self,
        scheduler: Scheduler,
        jumps: JumpForward,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler | None,
        limits: EngineLimits,
        rehearsed: Event,
        *,
        put: Callable[[Compiled], None],
    ) -> None:
        self.prompt_tokens = self.reused_tokens = self.generated_tokens = 0  # since the engine's start
        self._scheduler, self._jumps, self._tokenizer, self._grammars = scheduler, jumps, tokenizer, grammars
        self._rehearsed, self._put = rehearsed, put
        self._compilers = CompilePool(limit_seconds=limits.compile_seconds)
        self._live: dict[int, Sequence] = {}
        self._compiling: dict[int, Sequence] = {}  # those of them whose grammar is not ready
        self._ended: list[tuple[Sequence, bool]] = []  # told so, but not yet out of the scheduler

    def __len__(self) -> int:
        return len(self._live)

    @property
    def num_compiling(self) -> int:
        return len(self._compiling)

    def submit(self, message: Submit) -> None:
        """Take a request; if it begins in the middle, no token of another may be on its way. Whatever goes wrong with
        it is its own error: nobody waits for ever, and others go on."""
        request, handle = message.request, message.handle
        try:
            self._add(request, handle)
        except Exception as error:
            sequence = self._live.get(handle.request_id)
            if sequence is not None:
                self.fail(sequence, error, keep=False)
            else:
                self.refuse(message, _as_ours(error))

    def compiled(self, sequence: Sequence, result: Future[GrammarMatcher]) -> None:
        """Go on with a request whose grammar is ready or could not be made. As for `submit`."""
        if self._compiling.pop(sequence.id, None) is None:
            return  # cancelled meanwhile
        try:
            self._begin_constrained(sequence, result.result())
        except Exception as error:
            self.fail_unless_over(sequence, error)

    def cancel(self, request_id: int) -> None:
        """Stop a request, if it has not ended."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._finish(sequence, "cancelled")

    def score(self, scored: list[tuple[PromptSpan, list[TokenLogprob]]]) -> None:
        """Keep the log-probabilities of tokens that were known before their logits: the prompt's, and forced ones. A
        request whose output was finished with these only has ended."""
        for span, entries in scored:
            sequence = span.row.sequence
            if sequence.id not in self._live:
                continue  # it ended while this step was on its way
            for position, entry in enumerate(entries, span.position):
                if sequence.layout.unpredicted(position):
                    entry = TokenLogprob(entry.token_id, None)
                if position < sequence.num_prompt:
                    sequence.input_logprobs[position] = entry
                else:
                    sequence.score_forced(entry)
            if sequence.output.finished and sequence.unscored is None:
                self._end(sequence)

    def publish(self, built: BuiltBatch, sampled: SampledTokens) -> None:
        """Append the new tokens, tell the requests, end those that are complete."""
        for i, row in enumerate(built.sampled):
            sequence = row.sequence
            if sequence.output.finished:
                continue  # it ended while this step was on its way
            if i in sampled.errors:
                self.fail(sequence, sampled.errors[i])
                continue
            self._take(sequence, sampled.token_ids[i], sampled.logprobs[i])
        for row in built.ended:
            if row.sequence.id in self._live:
                self._finish(row.sequence, "length")

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a request for a reason that lies outside of its tokens."""
        text = sequence.output.finish(reason)
        if text:
            sequence.handle.publish(TokenEvent(sequence.id, (), text))
        self._end(sequence)

    def fail(self, sequence: Sequence, cause: Exception, *, keep: bool = True) -> None:
        """End a request with an error."""
        sequence.output.finish("error")
        self._end(sequence, _as_ours(cause), keep=keep)

    def fail_unless_over(self, sequence: Sequence, cause: Exception) -> None:
        """End a request whose state may be broken, if it has not ended."""
        if sequence.id in self._live:
            self.fail(sequence, cause, keep=False)

    def fail_rows(self, rows: list[Row], error: Exception) -> None:
        for row in rows:
            self.fail_unless_over(row.sequence, error)

    def fail_all(self, error: Exception) -> None:
        """End all that have not ended, and whose state may be broken, with an error."""
        for sequence in list(self._live.values()):
            self.fail_unless_over(sequence, error)

    def refuse_all(self, why: Callable[[], Exception]) -> None:
        """Tell all that have not ended that they will not be served. Safe in any thread once the engine's is over."""
        for sequence in list(self._live.values()):
            if self._live.pop(sequence.id, None) is not None:
                sequence.output.finish("error")
                sequence.handle.publish(FinishEvent(sequence.completion(), why()))

    @staticmethod
    def refuse(message: Submit, error: Exception) -> None:
        """Tell a request that was never taken."""
        nothing = Completion.nothing(message.handle.request_id, len(message.request.input_ids))
        message.handle.publish(FinishEvent(nothing, error))

    def settle(self) -> None:
        """Give up, or keep in the cache, what the requests that have just ended hold."""
        for sequence, keep in self._ended:
            self._scheduler.finish(sequence, keep=keep)
        self._ended.clear()

    # -- inside --

    def _add(self, request: Request, handle: RequestHandle) -> None:
        sampling = request.sampling
        output = OutputStream(sampling, self._tokenizer, self._tokenizer.eos_ids)
        assert sampling.seed is not None, "Engine.submit sets a seed"
        draw = SamplerRow(sampling, seed=sampling.seed, end_ids=output.end_ids)
        sequence = Sequence(request, handle, output, draw)
        self._live[sequence.id] = sequence
        if sampling.constraint is None:
            self._begin(sequence)
            return
        assert self._grammars is not None, "Engine.submit refuses constraints without grammars"
        at_once = self._jumps.is_prepared and self._rehearsed.is_set()
        known = self._grammars.known(sampling.constraint) if at_once else None
        if known is not None:
            self._begin_constrained(sequence, known)
            return
        self._compiling[sequence.id] = sequence
        compile = partial(self._compile, self._grammars, sampling.constraint)
        future = self._compilers.submit(compile)
        future.add_done_callback(lambda done: self._put(Compiled(sequence, done)))

    def _begin_constrained(self, sequence: Sequence, matcher: GrammarMatcher) -> None:
        """Let it be scheduled, with what its grammar forces at the beginning."""
        sequence.matcher = matcher
        sampling = sequence.request.sampling
        if sampling.stop or sampling.stop_regex or sampling.stop_token_ids:
            sequence.fresh_matcher = matcher.fork()
        self._begin(sequence)
        if sampling.max_new_tokens > 0 and sequence.id in self._live:
            self._jump(sequence)

    def _begin(self, sequence: Sequence) -> None:
        """Let it be scheduled; if it begins in the middle, behind the tokens that it brings along."""
        if sequence.request.begun_ids:
            for event in take_begun(sequence, self._tokenizer):
                sequence.handle.publish(event)
            if sequence.output.finished:
                self._end(sequence)
                return
            self._scheduler.share_with(sequence)  # what runs may hold the KV of these very tokens
        self._scheduler.add(sequence)

    def _compile(self, grammars: GrammarCompiler, constraint: Constraint) -> GrammarMatcher:
        """In a thread of its own."""
        self._jumps.prepare()
        matcher = grammars.compile(constraint)
        with untimed():  # a rehearsal that hangs is no reason to wait for ever
            self._rehearsed.wait(_MOST_REHEARSAL_SECONDS)
        return matcher

    def _take(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> None:
        """`_push`, whose errors are the request's own."""
        try:
            self._push(sequence, token_id, logprob)
        except Exception as error:
            self.fail_unless_over(sequence, error)

    def _push(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> None:
        """One sampled token of one request."""
        self._tell_first(sequence)
        self.generated_tokens += 1
        sequence.land(token_id)
        sequence.num_sampled += 1
        sequence.draw.count(token_id)
        text = sequence.output.push(token_id)
        matcher = sequence.matcher
        if matcher is not None and token_id not in sequence.output.end_ids:
            began = time.thread_time()
            if not matcher.follow((token_id,)):
                assert sequence.request.sampling.constraint is not None
                self.fail(sequence, too_large(sequence.request.sampling.constraint))
                return
            if matcher.is_done():
                text += sequence.output.finish("stop")
            sequence.grammar_seconds += time.thread_time() - began
            slow = too_slow(sequence.grammar_seconds, sequence.num_sampled)
            if slow is not None:
                self.fail(sequence, slow)
                return
        logprobs = (logprob,) if logprob is not None else ()
        sequence.logprobs.extend(logprobs)
        origin: Origin = "free" if matcher is None else "masked"
        sequence.handle.publish(TokenEvent(sequence.id, (token_id,), text, logprobs, origin))
        self._jump(sequence)

    def _jump(self, sequence: Sequence) -> None:
        """Add what the grammar forces next, if anything, and end the request if it is complete, unless forced tokens
        must be computed for their log-probabilities first."""
        if sequence.matcher is not None and not sequence.output.finished:
            before = sequence.num_generated
            try:
                event = self._jumps.jump(sequence, self._scheduler)
            except GrammarError as error:
                self.fail(sequence, error)
                return
            self.generated_tokens += sequence.num_generated - before
            if event is not None:
                self._tell_first(sequence)
                sequence.handle.publish(event)
        if sequence.output.finished and sequence.unscored is None:
            self._end(sequence)

    def _tell_first(self, sequence: Sequence) -> None:
        if sequence.first_token is None:
            sequence.first_token = time.perf_counter()

    def _end(self, sequence: Sequence, error: Exception | None = None, *, keep: bool = True) -> None:
        """Publish a request's completion; `settle` then takes it out of the engine. Of many that end in one step,
        none waits for the others' memory to be put in order."""
        try:
            is_cut = error is None and self._is_cut(sequence)
        except Exception as broken:  # it is told nevertheless
            is_cut, error, keep = False, _as_ours(broken), False
        sequence.drop_pending()
        sequence.release_held()
        self._ended.append((sequence, keep))
        self._compiling.pop(sequence.id, None)
        self._live.pop(sequence.id, None)
        self.prompt_tokens += sequence.num_prompt + sequence.num_begun
        self.reused_tokens += sequence.cached_tokens or 0
        sequence.handle.publish(FinishEvent(sequence.completion(is_cut=is_cut), error))

    def _is_cut(self, sequence: Sequence) -> bool:
        """Whether a stop ended a constrained text where its grammar would have gone on. What the stop cut from it is
        no part of it. A model without end tokens goes on wherever it can."""
        matcher, output, eos_ids = sequence.fresh_matcher, sequence.output, self._tokenizer.eos_ids
        if matcher is None or output.finish_reason != "stop" or output.matched is None or output.matched in eos_ids:
            return False
        ids = self._jumps.tokens_of(output.text, output.token_ids[: output.num_kept_tokens])
        return not (ids is not None and eos_ids and matcher.follow(ids) and accepts(matcher, min(eos_ids)))


def _as_ours(cause: Exception) -> Exception:
    """What a caller is told of an error: our own as it is, another as the cause of one."""
    cause = in_plain_words(cause)  # a step's has been told in these before
    if isinstance(cause, LmnbError):
        return cause
    error = GenerationError(f"a step of the engine failed: {cause}")
    error.__cause__ = cause
    return error
