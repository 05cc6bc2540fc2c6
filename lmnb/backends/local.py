"""The local backend: a model loaded into this process, and the engine that runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmnb.backends.capabilities import ALL_SAMPLING, Capabilities
from lmnb.backends.local_context import LocalContext, Served
from lmnb.backends.prompt_cache import PromptCache
from lmnb.backends.serving import open_server
from lmnb.backends.templates import ChatTemplate, get_chat_template, get_chat_template_by_model_path
from lmnb.backends.token_codec import TokenCodec
from lmnb.errors import ArgumentError, EngineClosedError
from lmnb.runtime.whole_imports import import_whole

if TYPE_CHECKING:
    from types import TracebackType

    from lmnb.runtime.engine import Engine
    from lmnb.runtime.events import CacheEvent, CacheSnapshot, EngineStatus
    from lmnb.runtime.handle import RequestHandle
    from lmnb.runtime.loading import LoadedModel
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
_OPTIONS = (
    "model",
    "model_path",
    "dtype",
    "device",
    "quantization",
    "load_format",
    "kv_cache",
    "max_running",
    "prefill_chunk",
    "chat_template",
    "jump_forward",
    "deterministic",
)


class Runtime:
    """A model in this process. Implements `Backend`; all methods may be called from any thread.

    `model`: a name ("smollm2", also the default), a local folder or GGUF file, a hub id, or a model that
    `load_model` has loaded; `model_path` is SGLang's name for it. `dtype`, `device` and `quantization` are
    `load_model`'s: by default a GGUF file's 4-bit integers are used as they are on a CPU. `kv_cache` (a number of
    tokens, or memory such as "512MiB" or "60GiB"), `max_running` and `prefill_chunk` are the engine's own choice unless
    given. `load_format="dummy"` puts random weights in place of a folder's own, which it need not have.
    `chat_template`: a registered name, Jinja source, or a `ChatTemplate`; by default the tokenizer's own.
    `jump_forward=False` samples even text that a constraint forces. `deterministic=True`: the same prompt and seed give
    the same text, whatever else runs, is cached or short of memory; slower.

    Use it as a context manager, or call `shutdown`; after that every use raises EngineClosedError.
    """

    capabilities = _CAPABILITIES

    def __init__(
        self,
        model: str | Path | LoadedModel | None = None,
        *,
        model_path: str | Path | None = None,
        dtype: str = "auto",
        device: str = "auto",
        quantization: str = "auto",
        load_format: str = "auto",
        kv_cache: int | str | None = None,
        max_running: int | None = None,
        prefill_chunk: int | None = None,
        chat_template: str | ChatTemplate | None = None,
        jump_forward: bool = True,
        deterministic: bool = False,
        **unknown: object,
    ) -> None:
        _refuse(unknown)
        if model is not None and model_path is not None:
            raise ArgumentError("model and model_path name the same thing: pass one of them")
        source = model if model is not None else model_path
        loaded = _load(source, dtype=dtype, device=device, quantization=quantization, load_format=load_format)
        codec = TokenCodec(loaded.tokenizer)
        self.name: str = loaded.model.name
        template, self._template_source = _choose_template(chat_template, codec, source, self.name)
        self.stop = template.stop
        engine = _start_engine(
            loaded,
            kv_cache=kv_cache,
            max_running=max_running,
            prefill_chunk=prefill_chunk,
            jump_forward=jump_forward,
            deterministic=deterministic,
        )
        self._tokenizer = loaded.tokenizer
        self._template = template
        self._lock = threading.Lock()
        self._served: Served | None = Served(engine, codec, template)

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
        return self._tokenizer

    def token_text(self, token_id: int) -> str:
        """The text of one token, for people to read."""
        return self.decode((token_id,))

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """A whole prompt's tokens as the engine gets them: markers in `text` count, and the tokenizer's own
        beginning is put before it."""
        context = self.new_context()
        context.append(text)
        return context.prompt_ids

    def sampling(self, params: SamplingParams, *, chat: bool = False) -> SamplingParams:
        """`params` such that the model cannot open a role; with `chat`, with the template's stops."""
        return self._use().sampling(params, template_stops=chat)

    def submit(self, request: Request, on_event: Callable[[Event], None] | None = None) -> RequestHandle:
        """Give the engine a request of token ids; see `Engine.submit`."""
        return self._engine().submit(request, on_event)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, for views of the cache."""
        return self._tokenizer.decode(tuple(ids))

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
        return self._engine().cache_events(since_seq)

    def subscribe(self, callback: Callable[[Sequence[CacheEvent]], None]) -> Callable[[], None]:
        """Call `callback` in the engine's thread with new cache events; returns what ends that."""
        return self._engine().subscribe(callback)

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
                f"the runtime of {self.name!r} was shut down: make a new one with lmnb.Runtime(...)"
            )
        return served


def _refuse(unknown: dict[str, object]) -> None:
    for name in unknown:
        close = get_close_matches(name, _OPTIONS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(_OPTIONS)}"
        raise ArgumentError(f"Runtime has no option {name!r}; {hint}")


def _import_engine() -> None:
    """Everything large that an engine needs, so that no import of it happens in the middle of loading."""
    import_whole("lmnb.runtime.loading", "lmnb.runtime.engine", "lmnb.runtime.grammar")
    if import_module("torch").cuda.is_available() and find_spec("triton") is not None:
        import_whole("triton", "triton.language")


def _load(source: str | Path | LoadedModel | None, **options: str) -> LoadedModel:
    _import_engine()
    from lmnb.runtime.loading import LoadedModel, load_model

    if isinstance(source, LoadedModel):
        return source
    return load_model(source, **options)


def _start_engine(loaded: LoadedModel, kv_cache: int | str | None, **options: Any) -> Engine:
    from lmnb.runtime.cache_size import pool_tokens
    from lmnb.runtime.config import EngineConfig
    from lmnb.runtime.engine import Engine
    from lmnb.runtime.grammar import Grammars

    size = None if kv_cache is None else pool_tokens(kv_cache, loaded.model.kv_layout)
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    return Engine(loaded.model, loaded.tokenizer, EngineConfig(pool_tokens=size, **options), grammars)


def _choose_template(
    wanted: str | ChatTemplate | None, codec: TokenCodec, source: object, model_name: str
) -> tuple[ChatTemplate, str]:
    """The chat template, and where it came from."""
    if wanted is not None and not isinstance(wanted, str):
        return wanted, "argument"
    if wanted is not None and "{%" not in wanted and "{{" not in wanted:
        return get_chat_template(wanted), "argument"
    jinja = wanted or codec.tokenizer.chat_template
    if jinja is None:
        path = str(source) if isinstance(source, (str, Path)) else model_name
        return get_chat_template_by_model_path(path), "name"
    from lmnb.backends.jinja_template import JinjaTemplate

    atoms = [codec.marker_text(token_id) for token_id in codec.marker_ids]
    name = "argument" if wanted else "tokenizer"
    return JinjaTemplate(jinja, codec.tokenizer.template_variables, atoms, name), name
