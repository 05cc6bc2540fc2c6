"""The engine: one thread that turns requests into tokens. No ports, and no global state but the length of turns
(`short_turns.py`).

It can be built, closed and built again in one process, and several can live side by side. It never prints.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from lmnb.errors import ArgumentError, EngineClosedError, GrammarError, RequestTooLongError, UnsupportedModelError
from lmnb.runtime import threads
from lmnb.runtime.argument_checks import check_token_ids, shown
from lmnb.runtime.batch import Model
from lmnb.runtime.begun import ruled_out
from lmnb.runtime.config import EngineConfig, check_strict, resolve
from lmnb.runtime.engine_loop import EngineLoop
from lmnb.runtime.events import CacheEvent, CachePin, CacheSnapshot, EngineStatus
from lmnb.runtime.grammar_protocol import GrammarCompiler
from lmnb.runtime.handle import RequestHandle, forked_error
from lmnb.runtime.jump_forward import JumpTables
from lmnb.runtime.memory import memory_for
from lmnb.runtime.messages import Call, Cancel, Close, Submit
from lmnb.runtime.process_end import awaited, end_all
from lmnb.runtime.request import Constraint, Event, Request
from lmnb.runtime.tokenizer import Tokenizer
from lmnb.runtime.uniform_stream import fresh_seed

T = TypeVar("T")
_SMALLER = "give a smaller kv_cache or max_running, or unload what else is there"


class Engine:
    """Runs `model` on requests until `close`. All methods may be called from any thread.

    `grammars` compiles constraints; without it, constrained requests are refused. `jump_tables`: those of the tokenizer
    and the model, if they are being prepared already.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        config: EngineConfig | None = None,
        grammars: GrammarCompiler | None = None,
        jump_tables: JumpTables | None = None,
    ) -> None:
        config = config or EngineConfig()
        check_strict(config, model.name, model.can_be_strict)
        if config.kv_cache_dtype != "auto" and not model.takes_fp8_keys:
            raise UnsupportedModelError(
                f"{model.name} has keys or values that do not fit into 8 bits (beyond 448); leave out kv_cache_dtype"
            )
        limits = resolve(config, model.kv_layout, model.context_tokens)
        self.limits = limits
        self.capacity = min(model.context_tokens, limits.pool_tokens)
        """Most tokens one sequence may have, prompt and generated together."""
        # What is asked of a closed engine must not need the model, which goes when the engine's thread ends.
        self.vocab_size, self._context_tokens = model.vocab_size, model.context_tokens
        self._grammars = grammars
        self._ids = itertools.count(1)
        pool = f"a KV pool of {limits.pool_tokens:,} tokens"
        with awaited(), memory_for(pool, model.kv_layout.device, _SMALLER):
            self._loop = EngineLoop(
                model, tokenizer, limits, grammars, jump_tables or JumpTables(tokenizer, model.vocab_size)
            )
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="lmnb-engine", daemon=True)
        self.rehearse = self._loop.rehearse
        """Does, on a GPU, some of what the first requests would wait for: to be called in a thread of its own."""
        self.activity = self._loop.activity
        """What the engine has to do. Whoever looks at it does not keep the engine alive."""
        self._process = os.getpid()
        threads.start(self._thread)
        # An engine that nobody holds any more ends its thread, which gives its memory back.
        self._finalizer = weakref.finalize(self, self._loop.inbox.put, Close())

    def submit(self, request: Request, on_event: Callable[[Event], None] | None = None) -> RequestHandle:
        """Queue `request`. Its events go to `on_event`, called in the engine's thread (it must be quick; if it raises,
        the request is cancelled, and that is its error), or else into the returned handle.

        Raises ArgumentError, GrammarError, RequestTooLongError, or EngineClosedError.
        """
        if not isinstance(request, Request):
            raise ArgumentError(f"the engine takes a lmnb.runtime.request.Request, not {shown(request)}")
        self._check(request)
        sampling = request.sampling
        # The last sampled token needs no slot, so a sequence may end one token past the capacity.
        room = self.capacity - len(request.input_ids)
        if request.layout.sections:  # it may stand further on than it has tokens
            room = min(room, self._context_tokens - request.layout.end_position(len(request.input_ids)))
        max_new_tokens = min(sampling.max_new_tokens, room + 1)
        sampling = replace(
            sampling,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min(sampling.min_new_tokens, max_new_tokens),
            seed=fresh_seed() if sampling.seed is None else sampling.seed,
        )
        handle = RequestHandle(next(self._ids), self._cancel, on_event)
        self._post(Submit(replace(request, sampling=sampling), handle))
        return handle

    def too_long(self, num_tokens: int | None = None) -> RequestTooLongError:
        """The error for a prompt of more tokens than `capacity`; None: nobody has counted how many."""
        context = self._context_tokens
        what = (
            f"the model's context of {context} tokens: shorten it"
            if context <= self.capacity
            else f"the KV pool of {self.capacity} tokens: shorten it, or load the model with a larger kv_cache"
        )
        counted = f"{num_tokens} tokens, more than " if num_tokens is not None else "more tokens than "
        return RequestTooLongError(f"the prompt has {counted}{what}")

    def status(self) -> EngineStatus:
        """Counters, as of the end of the step in progress."""
        return self._call(self._loop.status)

    def snapshot(self) -> CacheSnapshot:
        """The radix tree, as of the end of the step in progress."""
        return self._call(self._loop.snapshot)

    def holders(self) -> list[tuple[int, object]]:
        """Of each running request: the node up to which it holds the tree, and its owner."""
        return self._call(self._loop.holders)

    def cache_events(self, since_seq: int = 0) -> list[CacheEvent]:
        """The recorded cache events with `seq >= since_seq` (the oldest of very many are dropped)."""
        return self._call(lambda: self._loop.feed.since(since_seq))

    def subscribe(self, callback: Callable[[Sequence[CacheEvent]], None]) -> Callable[[], None]:
        """Call `callback` in the engine's thread after each step with the cache events it caused, until it raises
        (which is logged). Returns what ends that."""
        self._call(lambda: self._loop.feed.listeners.append(callback))

        def unsubscribe() -> None:
            with suppress(EngineClosedError):
                self._call(lambda: self._loop.feed.forget(callback))

        return unsubscribe

    def flush_cache(self) -> bool:
        """Forget what no pin keeps. False, and nothing done, while requests are running or waiting."""
        return self._call(self._loop.flush_cache)

    def pins(self) -> list[CachePin]:
        """What is pinned."""
        return self._call(self._loop.control.pins)

    def pin(self, node: int) -> CachePin:
        """Keep a node of the radix tree, and all above it, until `unpin`. CacheError beyond half of the pool."""
        return self._call(lambda: self._loop.control.pin(node))

    def pin_tokens(self, token_ids: Sequence[int]) -> CachePin | None:
        """Keep a cached prefix. None, and nothing done, if it is not cached whole. CacheError as `pin`."""
        return self._call(lambda: self._loop.control.pin_tokens(token_ids))

    def unpin(self, node: int) -> None:
        """Take back the pin of a node. CacheError if it has none."""
        self._call(lambda: self._loop.control.unpin(node))

    def unpin_all(self) -> int:
        """Take back every pin; how many there were."""
        return self._call(self._loop.control.unpin_all)

    def evict(self, node: int) -> int:
        """Give up a node and all below it; how many tokens that were. CacheError if a request or pin holds it."""
        return self._call(lambda: self._loop.control.evict(node))

    def evict_tokens(self, token_ids: Sequence[int]) -> int:
        """`evict` what of a cached prompt no other branch shares, and what continues it."""
        return self._call(lambda: self._loop.control.evict_tokens(token_ids))

    def check_integrity(self) -> None:
        """Recount every slot and lock; AssertionError tells what is wrong."""
        self._call(self._loop.scheduler.check_integrity)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or died, or is in another process: a fork has no thread of it."""
        return self._loop.closed or self._is_elsewhere

    def close(self) -> None:
        """End the thread and free the memory, the model's weights included unless someone else holds the model.
        Unfinished requests fail with EngineClosedError. Idempotent."""
        if self._is_elsewhere:
            self._finalizer.detach()
            return
        self._finalizer()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def ruled_out(self, constraint: Constraint, begun_ids: Collection[int], ids: Collection[int]) -> frozenset[int]:
        """Those of `ids` that the constraint does not allow behind `begun_ids`. May wait for it to be compiled."""
        if self._grammars is None:
            raise GrammarError("this engine was built without grammars, so it knows nothing of constraints")
        return ruled_out(self._grammars.compile(constraint), begun_ids, ids, self.vocab_size)

    def _check(self, request: Request) -> None:
        ids, sampling = request.input_ids + request.begun_ids, request.sampling
        if not request.input_ids:
            raise ArgumentError("the prompt is empty: give the model at least one token to start from")
        check_token_ids(ids, self.vocab_size)
        if len(ids) > self.capacity:
            raise self.too_long(len(ids))
        request.layout.check(len(ids))
        end = request.layout.end_position(len(ids))
        if end > self._context_tokens:
            raise RequestTooLongError(
                f"the prompt stands at positions up to {end}, beyond the model's context of "
                f"{self._context_tokens} tokens: give smaller position_ids_offset"
            )
        if request.logprob_start is not None and not 0 <= request.logprob_start < len(request.input_ids):
            limit = len(request.input_ids)
            raise ArgumentError(f"logprob_start must lie in [0, {limit}), not {request.logprob_start}")
        if sampling.constraint is not None and self._grammars is None:
            raise GrammarError("this engine was built without grammars, so it cannot constrain what it generates")

    def _cancel(self, request_id: int) -> None:
        if not self.closed:
            self._loop.inbox.put(Cancel(request_id))

    def _call(self, function: Callable[[], T]) -> T:
        """Run `function` in the engine's thread, between two steps."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._post(Call(function, future))
        while not wait((future,), timeout=0.1).done:
            pass  # short waits let a KeyboardInterrupt through on every platform
        return future.result()

    @property
    def _is_elsewhere(self) -> bool:
        return os.getpid() != self._process

    def _post(self, message: Submit | Call) -> None:
        if self._is_elsewhere:
            raise forked_error()
        if self.closed:
            raise self._loop.closed_error()
        self._loop.inbox.put(message)
        self._loop.refuse_if_closed()  # it may have closed in between: nobody would read the message any more


def _run(loop: EngineLoop) -> None:
    """The engine's thread. The process lets it finish its step, whoever holds the engine."""
    with awaited(partial(loop.inbox.put, Close())):
        loop.run()


atexit.register(end_all)  # once more, so that it comes before what torch does at the end
