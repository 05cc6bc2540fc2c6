"""The engine's thread: receive, schedule, launch, publish, and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event

import torch
from torch import Tensor

from lmnb.errors import EngineClosedError, RequestTooLongError
from lmnb.runtime.activity import Activity
from lmnb.runtime.batch import Model
from lmnb.runtime.batch_builder import BuiltBatch
from lmnb.runtime.cache_control import CacheControl
from lmnb.runtime.cache_feed import CacheFeed
from lmnb.runtime.config import EngineLimits
from lmnb.runtime.events import CacheSnapshot, EngineStatus
from lmnb.runtime.executor import make_executor
from lmnb.runtime.flight import Flight
from lmnb.runtime.grammar_protocol import GrammarCompiler
from lmnb.runtime.jump_forward import JumpForward, JumpTables
from lmnb.runtime.known_scores import PendingScores
from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.late_rows import LateRows
from lmnb.runtime.live_requests import LiveRequests
from lmnb.runtime.mask_state import MaskState
from lmnb.runtime.mask_worker import MaskWorker
from lmnb.runtime.memory import in_plain_words
from lmnb.runtime.messages import Call, Cancel, Close, Compiled, MaskMade, Message, Submit
from lmnb.runtime.pending_tokens import SampledTokens
from lmnb.runtime.radix_cache import RadixCache
from lmnb.runtime.rows import Row
from lmnb.runtime.sampler import Sampler
from lmnb.runtime.scheduler import Scheduler
from lmnb.runtime.tokenizer import Tokenizer

# How long messages are taken while the device waits, and how long the next of many is waited for while it does not.
_RECEIVE_SECONDS, _LINGER_SECONDS = 0.015, 0.002


class EngineLoop:
    """All state of a running engine. Everything but `inbox.put` and `closed` belongs to its thread."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        limits: EngineLimits,
        grammars: GrammarCompiler | None,
        jump_tables: JumpTables,
    ) -> None:
        self.model = model
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.closed = False
        self._pool = KVPool(limits.kv_layout, limits.pool_tokens)
        self._cache = RadixCache()
        self.feed = CacheFeed(self._cache)
        self.scheduler = Scheduler(limits, self._pool, self._cache)
        self.control = CacheControl(self.scheduler)
        self._grammars = grammars
        self._masks = MaskWorker(model.vocab_size, wake=partial(self.inbox.put, MaskMade()))
        self._late = LateRows()
        self.activity = Activity()
        self._rehearsed = Event()
        self._rehearsed.set()  # nothing is to be waited for, until somebody calls `rehearse`
        jumps = JumpForward(tokenizer, jump_tables, enabled=limits.jump_forward, plain=limits.plain_masks)
        self.requests = LiveRequests(
            self.scheduler, jumps, tokenizer, grammars, limits, self._rehearsed, put=self.inbox.put
        )
        sampler = Sampler(min(tokenizer.vocab_size, model.vocab_size))
        self._executor = make_executor(model, self._pool, self.scheduler, sampler, limits)
        self._rehearsal = self._executor.rehearsal()
        self._overlap = limits.overlap
        self._flights: list[Flight] = []
        self._death: BaseException | None = None
        self._num_steps = 0
        self._step_seconds = 0.0

    def rehearse(self) -> None:
        """In any thread: do, on a GPU, some of what the first requests would wait for. Constrained ones begin behind
        it: the kernels that choose under a mask would be compiled in the engine's thread, with all others waiting."""
        self._rehearsed.clear()
        try:
            self._rehearsal()
        finally:
            self._rehearsed.set()

    # -- the thread --

    def run(self) -> None:
        """Until closed. If the loop itself fails, every request is told, so that nobody waits for ever."""
        try:
            with torch.inference_mode():
                while self._receive():
                    if self.scheduler.has_work or self._flights:
                        self._step()
                    else:
                        self._late.clear()  # of requests that were cancelled
                    self.feed.announce()
        except BaseException as error:
            self._death = error
        finally:
            self.closed = True
            self.activity.close()
            self._masks.close()
            self.refuse_all()
            # Free the memory now, not when the last traceback, handle or context goes.
            self._pool.keys.clear()
            self._pool.values.clear()
            self._flights.clear()
            self._late.clear()
            self._executor.close()
            device = self.model.kv_layout.device
            del self.model, self._executor
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if self._grammars is not None:
                self._grammars.close()

    def _receive(self) -> bool:
        """Handle what other threads want; wait for something if there is nothing to compute. False: end.

        Of many requests that come at once, the first need not wait for the last, but a step for each would be a
        waste: new ones are taken for a while, and for longer as long as the device is busy anyway.
        """
        waits_for_mask = self.scheduler.is_idle and len(self._late) > 0
        wait = waits_for_mask or not (self.scheduler.has_work or self._flights)
        if wait and not waits_for_mask:
            self.activity.end()
        began = time.perf_counter()
        more_may_come = False
        while True:
            is_idle = all(flight.is_over for flight in self._flights)
            if is_idle and not wait and time.perf_counter() - began > _RECEIVE_SECONDS:
                return True
            try:
                linger = more_may_come and not is_idle
                message = self.inbox.get(block=wait or linger, timeout=_LINGER_SECONDS if linger else None)
            except Empty:
                return True
            if wait:
                now = time.perf_counter()
                if waits_for_mask:
                    self._masks.waited_seconds += now - began
                wait, began = False, now
            more_may_come = isinstance(message, Submit)
            if _needs_all_tokens(message):
                self._land()
            match message:
                case Submit():
                    self.requests.submit(message)
                case Compiled(sequence, result):
                    self.requests.compiled(sequence, result)
                case Cancel(request_id):
                    self.requests.cancel(request_id)
                case MaskMade():
                    pass  # the next step looks for it
                case Call(function, future):
                    _run_call(function, future)
                case Close():
                    return False
            self.requests.settle()

    def _step(self) -> None:
        """Launch what is due, and then publish what the step before it has chosen, while the device computes."""
        began = time.perf_counter()
        self.activity.begin()
        self._choose_late()
        if not self._overlap or not self.scheduler.can_step_ahead:
            self._land()
        rows = self._schedule()
        flight = self._launch(rows) if rows else None
        self._land()
        if flight is not None:
            self._flights.append(flight)
        if not self._overlap:
            self._land()
        self._num_steps += 1
        self._step_seconds += time.perf_counter() - began

    def _schedule(self) -> list[Row]:
        """The next step's rows. What goes wrong there is the error of the request that was looked at, and there is
        no step this time."""
        try:
            rows = self.scheduler.schedule(ahead=bool(self._flights))
        except Exception as error:
            suspect = self.scheduler.abandon_step()
            self._land()
            if suspect is None:
                self.requests.fail_all(error)
            else:
                self.requests.fail_unless_over(suspect, error)
            self.requests.settle()
            return []
        if self.scheduler.starved is not None:
            self.requests.fail(self.scheduler.starved, self._pinned_error())
            self.requests.settle()
        return rows

    def _pinned_error(self) -> RequestTooLongError:
        return RequestTooLongError(
            f"pins hold {self._cache.num_pinned:,} of the KV pool's {self._pool.num_slots:,} tokens, and this request "
            "needs more than the rest: unpin something, or load the model with a larger kv_cache"
        )

    def _launch(self, rows: list[Row]) -> Flight | None:
        """Start computing the rows and choosing the next token of those whose prompt is complete. Where the choice
        depends on a token that is on its way, the step before is landed in between: the device computes meanwhile.
        A row whose mask is late is left out: `_choose_late` chooses for it."""
        try:
            self._masks.begin([row.sequence for row in rows if row.leads_on and not row.sequence.num_pending])
            built, logits = self._executor.run(rows)
            self.scheduler.complete(rows)
            if built.must_wait:
                self._land()
                built = built.with_known_tokens()
                self._masks.begin([row.sequence for row in built.sampled])
            self._masks.wait([row.sequence for row in built.sampled], lambda: self._executor.is_computing)
            return self._choose(self._late.keep(built, logits), logits)
        except Exception as error:  # out of memory, a broken kernel: these requests fail, the engine goes on
            self._fail(rows, error)
            return None

    def _choose_late(self) -> None:
        """Launch the choice for rows of earlier steps whose masks are there by now."""
        taken = self._late.take()
        if taken is None:
            return
        built, logits = taken
        try:
            self._flights.append(self._choose(built, logits))
        except Exception as error:
            self._fail(built.rows, error)

    def _choose(self, built: BuiltBatch, logits: Tensor) -> Flight:
        """Launch the choice of the next token of `built.sampled`, whose masks are there."""
        scores = PendingScores(built, logits)
        tokens = self._executor.choose(built, logits)
        for row in built.sampled:
            row.sequence.mask = MaskState.NONE
            row.sequence.expect()
            row.sequence.draw.advance()
        return Flight(built, tokens, scores)

    def _fail(self, rows: list[Row], error: Exception) -> None:
        """A step, or a choice, could not be launched."""
        self._land()
        self.requests.fail_rows(rows, in_plain_words(error, self.model.kv_layout.device))
        self.requests.settle()

    def _land(self) -> None:
        """Read what the launched steps have chosen, and publish it."""
        flights, self._flights = self._flights, []
        for flight in flights:
            try:
                scored = flight.scores.read()
                sampled = SampledTokens([], []) if flight.tokens is None else flight.tokens.read()
            except Exception as error:  # what went wrong on a device shows only now
                self.requests.fail_rows(flight.built.rows, in_plain_words(error, self.model.kv_layout.device))
            else:
                self.requests.score(scored)
                self.requests.publish(flight.built, sampled)
            self.requests.settle()

    # -- what other threads ask for, run here through Call --

    def flush_cache(self) -> bool:
        if len(self.requests):
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
            waiting=len(self.scheduler.waiting) + self.requests.num_compiling,
            num_steps=self._num_steps,
            prompt_tokens=self.requests.prompt_tokens,
            reused_tokens=self.requests.reused_tokens,
            generated_tokens=self.requests.generated_tokens,
            pool_bytes=self._pool.num_bytes,
            weight_bytes=self.model.weight_bytes,
            weight_note=self.model.weight_note,
            kv_note="" if self._pool.layout.dtype is layout.dtype else "fp8_e4m3",
            step_seconds=self._step_seconds,
            bookkeeping_seconds=self.scheduler.seconds,
            num_masks=self._masks.num_masks,
            mask_seconds=self._masks.seconds,
            mask_wait_seconds=self._masks.waited_seconds,
            deterministic=self.scheduler.limits.deterministic,
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
        self.requests.refuse_all(self.closed_error)
        while True:
            try:
                message = self.inbox.get(block=False)
            except Empty:
                return
            if isinstance(message, Submit):
                self.requests.refuse(message, self.closed_error())
            elif isinstance(message, Call):
                message.future.set_exception(self.closed_error())


def _needs_all_tokens(message: Message) -> bool:
    """Whether it looks at other requests, or ends them: no token of theirs may be on its way."""
    match message:
        case Submit(request):
            return bool(request.begun_ids)
        case Compiled(sequence):
            return bool(sequence.request.begun_ids)
        case MaskMade():
            return False
    return True


def _run_call(function: Callable[[], object], future: Future[object]) -> None:
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)  # whoever waits is told, even of what ends the thread
        if not isinstance(error, Exception):
            raise
    else:
        future.set_result(result)
