"""`Engine`: prompts in, results out, in this process; the call that SGLang's offline engine has, without a server.

It knows nothing of programs. What it answers is what `/generate` answers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from lmnb.errors import ArgumentError, EngineClosedError, GenerationError, LmnbError
from lmnb.server.http_error import HttpError
from lmnb.server.job import Answer, Jobs
from lmnb.server.native import Native

if TYPE_CHECKING:
    from types import TracebackType

    from lmnb.backends.local import Runtime
    from lmnb.runtime.tokenizer import Tokenizer

_REFUSED = (
    *("image_data", "audio_data", "video_data", "token_ids_logprob", "lora_path", "custom_logit_processor"),
    "return_hidden_states",
)


class Engine:
    """A model in this process, driven by plain prompts. Programs run on `Runtime` instead.

    `Engine(model_path=..., ...)` takes what `Runtime` takes; `Engine(runtime=...)` shares one that is loaded. Results
    are `{"text", "output_ids", "meta_info"}`. Use it as a context manager, or call `shutdown`.
    """

    def __init__(self, *, runtime: Runtime | None = None, **options: Any) -> None:
        from lmnb.backends.local import Runtime

        if runtime is not None and options:
            raise ArgumentError(f"runtime= is loaded already, so {', '.join(options)} cannot be given with it")
        self._owned = runtime is None
        self.runtime: Runtime = runtime or Runtime(**options)
        self._native = Native(self.runtime, Jobs())

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"Engine({self.runtime!r})"

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        image_data: Any = None,
        audio_data: Any = None,
        video_data: Any = None,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        token_ids_logprob: Any = None,
        lora_path: Any = None,
        custom_logit_processor: Any = None,
        return_hidden_states: bool = False,
        stream: bool = False,
    ) -> Any:
        """A result; a list of them for a list of prompts, or for `n > 1`; with `stream`, an iterator of results whose
        text grows (`index` says of which prompt).

        `prompt` is text, in which special tokens count; `sampling_params` has SGLang's names (`max_new_tokens`,
        `temperature`, `stop`, `regex`, `json_schema`, `n`, ...), once or for each prompt. An interrupt cancels.
        Raises ArgumentError, GrammarError, or EngineClosedError.
        """
        body = _body(locals())
        answer = self._ask(body, threading.Event())
        return _results(answer) if isinstance(answer, Answer) else answer

    async def async_generate(self, *args: Any, **kwargs: Any) -> Any:
        """`generate` for a coroutine on any event loop; with `stream`, what it returns is an async iterator.
        Cancelling the task cancels the requests."""
        body = _body(_bound(args, kwargs))
        gone = threading.Event()
        try:
            answer = await asyncio.to_thread(self._ask, body, gone)
        except asyncio.CancelledError:
            gone.set()
            raise
        return _results_async(answer, gone) if isinstance(answer, Answer) else answer

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.runtime.get_tokenizer()

    def flush_cache(self) -> bool:
        """Forget cached prompts; False if requests are running and nothing was done."""
        return self.runtime.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        """The engine's counters."""
        return self._native.server_info()

    def shutdown(self) -> None:
        """Free the model, unless it was given by `runtime=`. Idempotent."""
        if self._owned:
            self.runtime.shutdown()

    def _ask(self, body: dict[str, Any], gone: threading.Event) -> Any:
        try:
            return self._native.generate(body, gone.is_set)
        except HttpError as error:
            raise _as_ours(error.status, error.message) from None


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    from inspect import signature

    try:
        bound = signature(Engine.generate).bind(None, *args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"async_generate takes what generate takes: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _body(given: dict[str, Any]) -> dict[str, Any]:
    """The protocol's request. ArgumentError for what no model here can do."""
    for name in _REFUSED:
        if given[name] not in (None, False, []):
            raise ArgumentError(f"{name} is not supported by this engine; leave it out")
    body = {
        "text": given["prompt"],
        "input_ids": given["input_ids"],
        "sampling_params": given["sampling_params"] or {},
        "stream": given["stream"],
        "return_logprob": _common(given["return_logprob"], "return_logprob"),
        "logprob_start_len": _common(given["logprob_start_len"], "logprob_start_len"),
        "top_logprobs_num": _common(given["top_logprobs_num"], "top_logprobs_num"),
    }
    return {name: value for name, value in body.items() if value is not None}


def _common(value: Any, name: str) -> Any:
    """One value for all prompts: itself, or what a list of them agrees on."""
    if not isinstance(value, list):
        return value
    if len(set(value)) > 1:
        raise ArgumentError(f"{name} must be the same for all prompts of a call; ask in several calls")
    return value[0] if value else None


def _results(answer: Answer) -> Iterator[dict[str, Any]]:
    try:
        for item in answer.events:
            yield _checked(item)
    finally:
        answer.close()


async def _results_async(answer: Answer, gone: threading.Event) -> AsyncIterator[dict[str, Any]]:
    try:
        while True:
            item = await asyncio.to_thread(next, answer.events, None)
            if item is None:
                return
            yield _checked(item)
    except asyncio.CancelledError:
        gone.set()
        raise
    finally:
        answer.job.cancel()


def _checked(item: dict[str, Any]) -> dict[str, Any]:
    if "error" in item:
        raise _as_ours(item["error"]["code"], item["error"]["message"])
    return item


def _as_ours(status: int, message: str) -> LmnbError:
    if status == 503:
        return EngineClosedError(message)
    return ArgumentError(message) if status < 500 else GenerationError(message)
