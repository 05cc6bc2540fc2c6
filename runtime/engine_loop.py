"""The engine's thread: receive, schedule, launch, publish, and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from lmnb.errors import EngineClosedError, GenerationError, GrammarError, LmnbError, RequestTooLongError
from lmnb.runtime.batch import Model
from lmnb.runtime.batch_builder import BuiltBatch
from lmnb.runtime.begun import take_begun
from lmnb.runtime.cache_control import CacheControl
from lmnb.runtime.compile_pool import CompilePool
from lmnb.runtime.config import EngineLimits
from lmnb.runtime.events import CacheEvent, CacheSnapshot, EngineStatus
from lmnb.runtime.executor import make_executor
from lmnb.runtime.grammar_protocol import GrammarCompiler, GrammarMatcher
from lmnb.runtime.handle import RequestHandle
from lmnb.runtime.jump_forward import JumpForward
from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.mask_worker import MaskWorker
from lmnb.runtime.messages import Call, Cancel, Close, Compiled, Message, Submit
from lmnb.runtime.radix_cache import RadixCache
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
from lmnb.runtime.sampler import PendingTokens, SampledTokens, Sampler, SamplerRow, token_logprobs
from lmnb.runtime.scheduler import Row, Scheduler
from lmnb.runtime.sequence import Sequence as EngineSequence
from lmnb.runtime.stopping import OutputStream
from lmnb.runtime.tokenizer import Tokenizer


class Flight(NamedTuple):
    """A step that was launched and whose tokens have not been read."""

    built: BuiltBatch
    tokens: PendingTokens | None

    @property
    def is_over(self) -> bool:
        """Whether the device is done with it."""
        return self.tokens is None or self.tokens.is_ready

    @property
    def must_land(self) -> bool:
        """Whether the next step of these requests cannot be made before their tokens are known here."""
        return any(row.sequence.matcher is not None or row.sequence.draw.needs_last_token for row in self.built.sampled)


# Processor time that a request's grammar may take; ordinary ones take some hundredths of a millisecond a token.
_GRAMMAR_SECONDS, _GRAMMAR_SECONDS_A_TOKEN = 0.25, 0.003

# How long messages are taken while the device waits, and how long the next of many is waited for while it does not.
_RECEIVE_SECONDS, _LINGER_SECONDS = 0.015, 0.002

CacheListener = Callable[[Sequence[CacheEvent]], None]


class EngineLoop:
    """All state of a running engine. Everything but `inbox.put` and `closed` belongs to its thread."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, limits: EngineLimits, grammars: GrammarCompiler | None
    ) -> None:
        self.model = model
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.closed = False
        self.listeners: list[CacheListener] = []
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._compilers = CompilePool(limit_seconds=limits.compile_seconds)
        self._sequences: dict[int, EngineSequence] = {}  # every request that is not over
        self._ended: list[tuple[EngineSequence, bool]] = []  # told so, but not yet out of the scheduler
        self._compiling: dict[int, EngineSequence] = {}  # those of them whose grammar is not ready
        self._pool = KVPool(model.kv_layout, limits.pool_tokens)
        self._cache = RadixCache()
        self.scheduler = Scheduler(limits, self._pool, self._cache)
        self.control = CacheControl(self.scheduler)
        self._masks = MaskWorker(model.vocab_size)
        self._jumps = JumpForward(tokenizer, model.vocab_size, enabled=limits.jump_forward, plain=limits.plain_masks)
        sampler = Sampler(min(tokenizer.vocab_size, model.vocab_size))
        self._executor = make_executor(model, self._pool, self.scheduler, sampler, limits)
        self._overlap = limits.overlap
        self._flight: Flight | None = None
        self._death: BaseException | None = None
        self._num_announced = 0  # cache events that listeners have seen
        self._num_steps = 0
        self._step_seconds = 0.0
        self._prompt_tokens = self._reused_tokens = self._generated_tokens = 0

    # -- the thread --

    def run(self) -> None:
        """Until closed. If the loop itself fails, every request is told, so that nobody waits for ever."""
        try:
            with torch.inference_mode():
                while self._receive():
                    if self.scheduler.has_work or self._flight is not None:
                        self._step()
                    self._announce()
        except BaseException as error:
            self._death = error
        finally:
            self.closed = True
            self._masks.close()
            self.refuse_all()
            # Free the memory now, not when the last traceback or handle goes.
            self._pool.keys.clear()
            self._pool.values.clear()
            self._flight = None
            self._executor.close()
            if self.model.kv_layout.device.type == "cuda":
                torch.cuda.empty_cache()

    def _receive(self) -> bool:
        """Handle what other threads want; wait for something if there is nothing to compute. False: end.

        Of many requests that come at once, the first need not wait for the last, but a step for each would be a
        waste: new ones are taken for a while, and for longer as long as the device is busy anyway.
        """
        wait = not self.scheduler.has_work and self._flight is None
        began = time.perf_counter()
        more_may_come = False
        while True:
            is_idle = self._flight is None or self._flight.is_over
            if is_idle and not wait and time.perf_counter() - began > _RECEIVE_SECONDS:
                return True
            try:
                linger = more_may_come and not is_idle
                message = self.inbox.get(block=wait or linger, timeout=_LINGER_SECONDS if linger else None)
            except Empty:
                return True
            if wait:
                wait, began = False, time.perf_counter()
            more_may_come = isinstance(message, Submit)
            if not isinstance(message, Submit | Compiled):
                self._land()  # these look at, or end, requests: no token of theirs may be on its way
            match message:
                case Submit():
                    self._submit(message)
                case Compiled(sequence, result):
                    self._compiled(sequence, result)
                case Cancel(request_id):
                    self._cancel(request_id)
                case Call(function, future):
                    _run_call(function, future)
                case Close():
                    return False
            self._settle()

    def _step(self) -> None:
        """Launch what is due, and then publish what the step before it has chosen, while the device computes."""
        began = time.perf_counter()
        if not self.scheduler.can_step_ahead:
            self._land()
        rows = self._schedule()
        flight = self._launch(rows) if rows else None
        self._land()
        self._flight = flight
        if flight is not None and (not self._overlap or flight.must_land):
            self._land()
        self._num_steps += 1
        self._step_seconds += time.perf_counter() - began

    def _schedule(self) -> list[Row]:
        """The next step's rows. What goes wrong there is the error of the request that was looked at, and there is
        no step this time."""
        try:
            rows = self.scheduler.schedule(ahead=self._flight is not None)
        except Exception as error:
            suspect = self.scheduler.abandon_step()
            self._land()
            for sequence in list(self._sequences.values()) if suspect is None else [suspect]:
                self._fail_unless_over(sequence, error)
            self._settle()
            return []
        if self.scheduler.starved is not None:
            self._fail(self.scheduler.starved, self._pinned_error())
            self._settle()
        return rows

    def _pinned_error(self) -> RequestTooLongError:
        return RequestTooLongError(
            f"pins hold {self._cache.num_pinned:,} of the KV pool's {self._pool.num_slots:,} tokens, and this request "
            "needs more than the rest: unpin something, or load the model with a larger kv_cache"
        )

    def _launch(self, rows: list[Row]) -> Flight | None:
        """Start computing the rows and choosing the next token of those whose prompt is complete."""
        try:
            self._masks.begin([row.sequence for row in rows if row.is_last])
            try:
                built, logits = self._executor.run(rows)
            finally:
                self._masks.finish()
            self._score_prompts(built, logits)
            tokens = self._executor.choose(built, logits)
        except Exception as error:  # out of memory, a broken kernel: these requests fail, the engine goes on
            self._land()
            self._fail_rows(rows, error)
            self._settle()
            return None
        self.scheduler.complete(rows)
        for row in built.sampled:
            row.sequence.expect()
            row.sequence.draw.advance()
        return Flight(built, tokens)

    def _land(self) -> None:
        """Read what the launched step has chosen, if there is one, and publish it."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        try:
            sampled = SampledTokens([], []) if flight.tokens is None else flight.tokens.read()
        except Exception as error:  # what went wrong on a device shows only now
            self._fail_rows(flight.built.rows, error)
        else:
            self._publish(flight.built, sampled)
        self._settle()

    def _fail_rows(self, rows: list[Row], error: Exception) -> None:
        for row in rows:
            self._fail_unless_over(row.sequence, error)

    def _score_prompts(self, built: BuiltBatch, logits: Tensor) -> None:
        """Keep the log-probabilities of tokens that were known before their logits: the prompt's, and forced ones."""
        for row, position, start, stop in built.prompt_spans:
            sequence = row.sequence
            targets = sequence.tokens[position : position + stop - start].tolist()
            num_top = sequence.request.sampling.top_logprobs_num
            for offset, entry in enumerate(token_logprobs(logits[start:stop], targets, num_top)):
                if sequence.layout.unpredicted(position + offset):
                    entry = TokenLogprob(entry.token_id, None)
                if position + offset < sequence.num_prompt:
                    sequence.input_logprobs[position + offset] = entry
                else:
                    sequence.score_forced(entry)

    def _publish(self, built: BuiltBatch, sampled: SampledTokens) -> None:
        """Append the new tokens, tell the requests, end those that are complete."""
        for i, row in enumerate(built.sampled):
            sequence = row.sequence
            if sequence.output.finished:
                continue  # it ended while this step was on its way
            if i in sampled.errors:
                self._fail(sequence, sampled.errors[i])
                continue
            self._take(sequence, sampled.token_ids[i], sampled.logprobs[i])
        for row in built.ended:
            if row.sequence.id in self._sequences:
                self._finish(row.sequence, "length")

    def _take(self, sequence: EngineSequence, token_id: int, logprob: TokenLogprob | None) -> None:
        """`_push`, whose errors are the request's own."""
        try:
            self._push(sequence, token_id, logprob)
        except Exception as error:
            self._fail_unless_over(sequence, error)

    def _push(self, sequence: EngineSequence, token_id: int, logprob: TokenLogprob | None) -> None:
        """One sampled token of one request."""
        self._tell_first(sequence)
        self._generated_tokens += 1
        sequence.land(token_id)
        sequence.num_sampled += 1
        sequence.draw.count(token_id)
        text = sequence.output.push(token_id)
        matcher = sequence.matcher
        began = time.thread_time()
        if matcher is not None and token_id not in sequence.output.end_ids:
            if not matcher.accept(token_id):
                self._fail(sequence, GrammarError("the grammar refused a token that its own mask had allowed"))
                return
            if matcher.is_done():
                text += sequence.output.finish("stop")
            sequence.grammar_seconds += time.thread_time() - began
            if sequence.grammar_seconds > _GRAMMAR_SECONDS + _GRAMMAR_SECONDS_A_TOKEN * sequence.num_sampled:
                self._fail(sequence, GrammarError("the constraint's masks take too long to compute; simplify it"))
                return
        logprobs = (logprob,) if logprob is not None else ()
        sequence.logprobs.extend(logprobs)
        origin: Origin = "free" if matcher is None else "masked"
        sequence.handle.publish(TokenEvent(sequence.id, (token_id,), text, logprobs, origin))
        self._jump(sequence)

    def _jump(self, sequence: EngineSequence) -> None:
        """Add what the grammar forces next, if anything, and end the request if it is complete, unless forced tokens
        must be computed for their log-probabilities first."""
        if sequence.matcher is not None and not sequence.output.finished:
            before = sequence.num_generated
            try:
                event = self._jumps.jump(sequence, self.scheduler)
            except GrammarError as error:
                self._fail(sequence, error)
                return
            self._generated_tokens += sequence.num_generated - before
            if event is not None:
                self._tell_first(sequence)
                sequence.handle.publish(event)
        if sequence.output.finished and sequence.unscored is None:
            self._end(sequence)

    def _tell_first(self, sequence: EngineSequence) -> None:
        if sequence.first_token is None:
            sequence.first_token = time.perf_counter()

    def _finish(self, sequence: EngineSequence, reason: FinishReason) -> None:
        """End a request for a reason that lies outside of its tokens."""
        text = sequence.output.finish(reason)
        if text:
            sequence.handle.publish(TokenEvent(sequence.id, (), text))
        self._end(sequence)

    def _fail(self, sequence: EngineSequence, cause: Exception, *, keep: bool = True) -> None:
        """End a request with an error."""
        sequence.output.finish("error")
        self._end(sequence, _as_ours(cause), keep=keep)

    def _fail_unless_over(self, sequence: EngineSequence, cause: Exception) -> None:
        """End a request whose state may be broken, if it has not ended."""
        if sequence.id in self._sequences:
            self._fail(sequence, cause, keep=False)

    def _end(self, sequence: EngineSequence, error: Exception | None = None, *, keep: bool = True) -> None:
        """Publish a request's completion; `_settle` then takes it out of the engine. Of many that end in one step,
        none waits for the others' memory to be put in order."""
        sequence.release_held()
        sequence.drop_pending()
        self._ended.append((sequence, keep))
        self._compiling.pop(sequence.id, None)
        self._sequences.pop(sequence.id, None)
        self._prompt_tokens += sequence.num_prompt + sequence.num_begun
        self._reused_tokens += sequence.cached_tokens or 0
        sequence.handle.publish(FinishEvent(sequence.completion(), error))

    def _settle(self) -> None:
        """Give up, or keep in the cache, what the requests that have just ended hold."""
        for sequence, keep in self._ended:
            self.scheduler.finish(sequence, keep=keep)
        self._ended.clear()

    # -- messages --

    def _submit(self, message: Submit) -> None:
        """Take a request. Whatever goes wrong with it is its own error: nobody waits for ever, and others go on."""
        request, handle = message.request, message.handle
        try:
            self._add(request, handle)
        except Exception as error:
            sequence = self._sequences.get(handle.request_id)
            if sequence is not None:
                self._fail(sequence, error, keep=False)
            else:
                nothing = Completion.nothing(handle.request_id, len(request.input_ids))
                handle.publish(FinishEvent(nothing, _as_ours(error)))

    def _add(self, request: Request, handle: RequestHandle) -> None:
        sampling = request.sampling
        output = OutputStream(sampling, self._tokenizer, self._tokenizer.eos_ids)
        assert sampling.seed is not None, "Engine.submit sets a seed"
        draw = SamplerRow(sampling, seed=sampling.seed, end_ids=output.end_ids)
        sequence = EngineSequence(request, handle, output, draw)
        self._sequences[sequence.id] = sequence
        if sampling.constraint is None:
            self._begin(sequence)
        else:
            assert self._grammars is not None, "Engine.submit refuses constraints without grammars"
            self._compiling[sequence.id] = sequence
            compile = partial(self._compile, self._grammars, sampling.constraint)
            future = self._compilers.submit(compile)
            future.add_done_callback(lambda done: self.inbox.put(Compiled(sequence, done)))

    def _begin(self, sequence: EngineSequence) -> None:
        """Let it be scheduled; if it begins in the middle, behind the tokens that it brings along."""
        if sequence.request.begun_ids:
            for event in take_begun(sequence, self._tokenizer):
                sequence.handle.publish(event)
            if sequence.output.finished:
                self._end(sequence)
                return
            self._land()  # what runs may hold the KV of these very tokens: all of it must be known
            self.scheduler.share_with(sequence)
        self.scheduler.add(sequence)

    def _compiled(self, sequence: EngineSequence, result: Future[GrammarMatcher]) -> None:
        if self._compiling.pop(sequence.id, None) is None:
            return  # cancelled meanwhile
        try:
            sequence.matcher = result.result()
            self._begin(sequence)
            if sequence.request.sampling.max_new_tokens > 0 and sequence.id in self._sequences:
                self._jump(sequence)
        except Exception as error:
            self._fail_unless_over(sequence, error)

    def _compile(self, grammars: GrammarCompiler, constraint: Constraint) -> GrammarMatcher:
        """In a thread of its own."""
        self._jumps.prepare()
        return grammars.compile(constraint)

    def _cancel(self, request_id: int) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence, "cancelled")

    def _announce(self) -> None:
        """Hand new cache events to the listeners."""
        events = self._cache.events
        if not events or events[-1].seq < self._num_announced:
            return
        fresh = self.events_since(self._num_announced)
        self._num_announced = events[-1].seq + 1
        for listener in tuple(self.listeners):
            listener(fresh)

    # -- what other threads ask for, run here through Call --

    def events_since(self, seq: int) -> list[CacheEvent]:
        """Recorded events from `seq` on."""
        events = self._cache.events
        if not events or events[-1].seq < seq:
            return []
        count = min(len(events), events[-1].seq - seq + 1)
        return [events[len(events) - count + i] for i in range(count)]

    def forget_listener(self, listener: CacheListener) -> None:
        """No-op if it is not there."""
        if listener in self.listeners:
            self.listeners.remove(listener)

    def flush_cache(self) -> bool:
        if self._sequences:
            return False
        self.control.flush()
        return True

    def snapshot(self) -> CacheSnapshot:
        return self._cache.snapshot(pool_tokens=self._pool.num_slots, free_tokens=self._pool.num_free)

    def holders(self) -> list[tuple[int, object]]:
        return [(each.node.id, each.request.owner) for each in self.scheduler.running if each.node is not None]

    def status(self) -> EngineStatus:
        layout = self.model.kv_layout
        return EngineStatus(
            model=self.model.name,
            device=str(layout.device),
            dtype=str(layout.dtype).removeprefix("torch."),
            context_tokens=self.model.context_tokens,
            pool_tokens=self._pool.num_slots,
            free_tokens=self._pool.num_free,
            cached_tokens=self._cache.num_tokens,
            pinned_tokens=self._cache.num_pinned,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting) + len(self._compiling),
            num_steps=self._num_steps,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused_tokens,
            generated_tokens=self._generated_tokens,
            pool_bytes=self._pool.num_bytes,
            weight_bytes=self.model.weight_bytes,
            step_seconds=self._step_seconds,
            bookkeeping_seconds=self.scheduler.seconds,
            num_masks=self._masks.num_masks,
            mask_seconds=self._masks.seconds,
            mask_wait_seconds=self._masks.waited_seconds,
        )

    # -- the end --

    def closed_error(self) -> EngineClosedError:
        """What to tell whoever still wants something."""
        if self._death is None:
            return EngineClosedError("the engine is closed: load the model again")
        error = EngineClosedError(f"the engine died: {self._death}; load the model again")
        error.__cause__ = self._death
        return error

    def refuse_if_closed(self) -> None:
        """For whoever has just put a message: the thread may have gone meanwhile."""
        if self.closed:
            self.refuse_all()

    def refuse_all(self) -> None:
        """Fail every request and call that will not be served any more. Safe in any thread once closed."""
        for sequence in list(self._sequences.values()):
            if self._sequences.pop(sequence.id, None) is not None:
                sequence.output.finish("error")
                sequence.handle.publish(FinishEvent(sequence.completion(), self.closed_error()))
        while True:
            try:
                message = self.inbox.get(block=False)
            except Empty:
                return
            if isinstance(message, Submit):
                completion = Completion.nothing(message.handle.request_id, len(message.request.input_ids))
                message.handle.publish(FinishEvent(completion, self.closed_error()))
            elif isinstance(message, Call):
                message.future.set_exception(self.closed_error())


def _as_ours(cause: Exception) -> Exception:
    """What a caller is told of an error: our own as it is, another as the cause of one."""
    if isinstance(cause, LmnbError):
        return cause
    error = GenerationError(f"a step of the engine failed: {cause}")
    error.__cause__ = cause
    return error


def _run_call(function: Callable[[], object], future: Future[object]) -> None:
    try:
        result = function()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
