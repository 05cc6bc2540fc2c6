"""The local backend: a model loaded into this process, and the engine that runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lmnb.backends.capabilities import ALL_SAMPLING, Capabilities
from lmnb.backends.local_context import LocalContext
from lmnb.backends.local_plan import RuntimePlan, plan_runtime
from lmnb.backends.prompt_cache import PromptCache
from lmnb.backends.runtime_options import RuntimeOptions, described, taking
from lmnb.backends.served import Served
from lmnb.backends.serving import open_server
from lmnb.backends.unpicklable import Unpicklable
from lmnb.errors import ArgumentError, EngineClosedError
from lmnb.runtime.argument_checks import check_token_ids, function, shown, token_ids, whole_number

if TYPE_CHECKING:
    from types import TracebackType

    from lmnb.backends.templates import ChatTemplate
    from lmnb.runtime.engine import Engine
    from lmnb.runtime.events import CacheEvent, CacheSnapshot, EngineStatus
    from lmnb.runtime.handle import RequestHandle
    from lmnb.runtime.request import Event, Request, SamplingParams
    from lmnb.runtime.tokenizer import Tokenizer

_CAPABILITIES = Capabilities(
    logprobs="with top_logprobs, and of the prompt",
    select="scored",
    regex="enforced token by token",
    json_schema="enforced token by token",
    ebnf="enforced token by token",
    grammar_options=True,
    token_lens=True,
    resumes=True,
    concatenates_caches=True,
    cancel="at once",
    continues_turn=True,
    data_is_text=True,
    sampling=ALL_SAMPLING,
)


class Runtime(Unpicklable):
    """A model in this process. Implements `Backend`; all methods may be called from any thread.

    Use it as a context manager, or call `shutdown`; after that every use raises EngineClosedError.
    """

    capabilities = _CAPABILITIES
    _instead = "make one there with lmnb.Runtime(...), or call serve() here and use lmnb.RuntimeEndpoint(url) there"

    @taking(RuntimeOptions)
    def __init__(self, options: RuntimeOptions) -> None:
        self._open(plan_runtime(options))

    @classmethod
    @taking(RuntimeOptions)
    def prepare(cls, options: RuntimeOptions) -> Callable[[], Runtime]:
        """Check all that `Runtime(model, ...)` can be told to be wrong with before any weights are read; raises what
        that would raise. What it returns, called once, reads the weights and gives the runtime: a model that is to make
        room can be unloaded in between."""
        plan = plan_runtime(options)

        def open_runtime() -> Runtime:
            runtime = cls.__new__(cls)
            runtime._open(plan)
            return runtime

        return open_runtime

    def _open(self, plan: RuntimePlan) -> None:
        """Read the weights and start the engine."""
        engine, codec = plan.start()
        self.name: str = plan.name
        self.stop = plan.template.stop
        self._template = plan.template
        self._template_source = plan.template_source
        self._codec = codec
        self._vocab_size = max(engine.vocab_size, codec.tokenizer.vocab_size)
        self._lock = threading.Lock()
        self._served: Served | None = Served(engine, codec, plan.template)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        state = ", shut down" if self._served is None else ", ended" if self.closed else ""
        return f"Runtime({self.name!r}{state})"

    @property
    def closed(self) -> bool:
        """Whether `shutdown` was called, or the engine died (or was left behind by a fork)."""
        served = self._served
        return served is None or served.engine.closed

    @property
    def chat_template(self) -> ChatTemplate:
        """The template that contexts use."""
        return self._template

    @property
    def cache(self) -> PromptCache:
        """What is cached, to pin and to let go of."""
        return PromptCache(self._engine, self.encode_prompt, self.decode)

    def new_context(self) -> LocalContext:
        """An empty prompt."""
        return LocalContext(self._use())

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        self._use()
        return self._codec.tokenizer

    def token_text(self, token_id: int) -> str:
        """The text of one token, for people to read."""
        return self.decode((token_id,))

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """A whole prompt's tokens as the engine gets them: markers in `text` count, and the tokenizer's own
        beginning is put before it."""
        if not isinstance(text, str):
            raise ArgumentError(f"a prompt's text must be text, not {shown(text)}")
        context = self.new_context()
        context.append(text)
        return context.prompt_ids

    def sampling(self, params: SamplingParams, *, chat: bool = False) -> SamplingParams:
        """`params` such that the model cannot open a role; with `chat`, with the template's stops."""
        return self._use().sampling(params, template_stops=chat)

    def submit(self, request: Request, on_event: Callable[[Event], None] | None = None) -> RequestHandle:
        """Give the engine a request of token ids; see `Engine.submit`."""
        if on_event is not None:
            function("on_event", on_event, ("event",))
        return self._engine().submit(request, on_event)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, for views of the cache. ArgumentError for ids that the model does not have."""
        found = token_ids("ids", ids)
        check_token_ids(found, self._vocab_size)
        return self._codec.bytes_of(found).decode("utf-8", errors="replace")

    def status(self) -> EngineStatus:
        """The engine's counters."""
        return self._engine().status()

    def snapshot(self) -> CacheSnapshot:
        """The whole radix tree."""
        return self._engine().snapshot()

    def holders(self) -> list[tuple[int, object]]:
        """Of each running request: the node of the tree up to which it holds it, and its owner."""
        return self._engine().holders()

    def cache_events(self, since_seq: int = 0) -> list[CacheEvent]:
        """Recorded cache events from `since_seq` on."""
        return self._engine().cache_events(whole_number("since_seq", since_seq))

    def subscribe(self, callback: Callable[[Sequence[CacheEvent]], None]) -> Callable[[], None]:
        """Call `callback` in the engine's thread with new cache events; returns what ends that."""
        return self._engine().subscribe(function("callback", callback, ("events",)))

    def flush_cache(self) -> bool:
        """Forget cached prompts that are not pinned; False if requests are running and nothing was done."""
        return self._engine().flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        """The engine's counters and the chat template in use (`chat_template_source`: "tokenizer", "argument",
        or "name", which means that the tokenizer has none and the model's name chose it)."""
        return {
            **asdict(self.status()),
            "chat_template": self._template.name,
            "chat_template_source": self._template_source,
            "stop": list(self.stop),
            "capabilities": self.capabilities.as_dict(),
        }

    def serve(self, *, host: str = "127.0.0.1", port: int = 0, api_key: str | None = None) -> Any:
        """Serve this runtime over HTTP, in SGLang's and OpenAI's protocols. Returns a `lmnb.server.Server`."""
        return open_server(self, host=host, port=port, api_key=api_key)

    def shutdown(self) -> None:
        """End the engine and free the model's memory. What runs fails with EngineClosedError. Idempotent."""
        with self._lock:
            served, self._served = self._served, None
        if served is not None:
            served.engine.close()

    def _engine(self) -> Engine:
        return self._use().engine

    def _use(self) -> Served:
        served = self._served
        if served is None:
            raise EngineClosedError(
                f"the runtime of {self.name!r} was shut down: make a new one with lmnb.Runtime(...), or in a notebook "
                "with %lmnb load"
            )
        return served


Runtime.__doc__ = f"{Runtime.__doc__}\n    Options:\n\n{described()}\n"
