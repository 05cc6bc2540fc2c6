"""What the backends of vendors' APIs share: cancel, errors without keys, counted tokens, and contexts.

A backend says how one call is made; everything about states and prompts is here and in the prompts.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lmnb.backends.base import CancelToken, Delta, Generation, Owner, Scores
from lmnb.backends.capabilities import Capabilities
from lmnb.backends.images import Picture
from lmnb.backends.plain_values import PlainValue, plain_value, value_of_schema
from lmnb.backends.remote.api_reply import ApiReply
from lmnb.backends.remote.cancellation import until_cancelled
from lmnb.backends.remote.chat_prompt import ChatPrompt
from lmnb.backends.remote.schema_check import check_schema
from lmnb.backends.remote.secrets import Secret
from lmnb.backends.remote.structured import ask_for_choice, ask_for_value
from lmnb.backends.remote.text_prompt import TextPrompt
from lmnb.backends.remote.token_texts import TokenTexts
from lmnb.backends.remote.token_usage import TokenUsage
from lmnb.backends.remote.unreadable import Teller
from lmnb.backends.templates import ChatTemplate, get_chat_template, get_chat_template_by_model_path
from lmnb.backends.unpicklable import Unpicklable
from lmnb.errors import ArgumentError, CancelledError, LmnbError
from lmnb.runtime.request import SamplingParams

if TYPE_CHECKING:
    from types import TracebackType

B = TypeVar("B", bound="ApiBackend")

_ONE_TEMPERATURE = r"o\d|gpt-5"  # OpenAI's reasoning models, which refuse any other than 1


class ApiBackend(Unpicklable, ABC):
    """A model behind a vendor's SDK. Implements `Backend`; all methods may be called from any thread."""

    _instead = "make the backend again where it is needed, with its key in the environment"
    wants_objects = False  # whether a JSON schema must have an object at its root
    choosing_temperature = 0.0  # for a choice by structured output; 1 is not sent, and some models take no other

    def __init__(
        self,
        model_name: str,
        *,
        is_chat_model: bool,
        chat_template: str | ChatTemplate | None,
        capabilities: Capabilities,
        key: Secret,
        url: str,
    ) -> None:
        if not isinstance(model_name, str) or not model_name:
            raise ArgumentError(f"a model is named by text, not by {model_name!r}")
        self.name = model_name
        self.is_chat_model = is_chat_model
        if re.match(_ONE_TEMPERATURE, model_name.rpartition("/")[2]):
            self.choosing_temperature = 1.0
        self.chat_template = _template(chat_template, model_name)
        # A chat API ends a turn by itself; a completion is told by the template's stops.
        self.stop: tuple[str, ...] = () if is_chat_model else self.chat_template.stop
        self.capabilities = capabilities
        self.token_texts = TokenTexts()
        self.token_usage = TokenUsage()
        self.url = url
        self.tell = Teller(f"{self.who} ({model_name})", key)

    def __enter__(self: B) -> B:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        kind = "chat" if self.is_chat_model else "completion"
        return f"{self.who}({self.name!r}, {kind} at {self.url}; {self.capabilities})"

    @property
    def who(self) -> str:
        """The backend's name in errors."""
        return type(self).__name__

    def new_context(self) -> ApiContext:
        """An empty prompt."""
        return ApiContext(
            self, ChatPrompt(self.chat_template) if self.is_chat_model else TextPrompt(self.chat_template)
        )

    def token_text(self, token_id: int) -> str:
        """The token's text, as an answer has told it."""
        return self.token_texts.text(token_id)

    def flush_cache(self) -> bool:
        """A vendor's cache is its own: False, nothing was done."""
        return False

    def get_server_info(self) -> dict[str, Any]:
        """The model, the address, what it can do, and the tokens used so far."""
        usage = self.token_usage
        return {
            "model": self.name,
            "url": self.url,
            "is_chat_model": self.is_chat_model,
            "chat_template": self.chat_template.name,
            "calls": usage.calls,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "capabilities": self.capabilities.as_dict(),
        }

    @abstractmethod
    async def call(self, prompt: ChatPrompt | TextPrompt, params: SamplingParams, reply: ApiReply) -> None:
        """Make one streamed call, and fill `reply`."""

    @abstractmethod
    def shutdown(self) -> None:
        """Close the connections."""

    @abstractmethod
    def told(self, error: Exception) -> str | None:
        """The server's own message in an SDK's error; None for an error that is not the SDK's."""

    async def call_for_value(
        self, prompt: ChatPrompt | TextPrompt, params: SamplingParams, value: PlainValue, reply: ApiReply
    ) -> None:
        """Fill `reply` with a plain value's text, which no regex of the API's enforces."""
        assert isinstance(prompt, ChatPrompt)
        await ask_for_value(self, prompt, params, value, reply)

    async def score(self, prompt: ChatPrompt | TextPrompt, choices: Sequence[str], *, unconditional: bool) -> Scores:
        """Score choices, or have the API choose."""
        if self.capabilities.select != "structured" or not isinstance(prompt, ChatPrompt):
            raise self.capabilities.refuse_select(self.who)
        return await ask_for_choice(self, prompt, choices)

    def prefix_to_send(self, prefix: str) -> str:
        """What an assistant's turn begins with, if this API can go on from it. ArgumentError if it cannot."""
        if prefix.strip() and not self.capabilities.continues_turn:
            raise ArgumentError(
                f"{self.who} writes an assistant turn from its beginning, so nothing may stand before gen in the turn, "
                f"but {prefix[:40]!r} does; move it to the user turn, or give the program num_api_spec_tokens"
            )
        return prefix if prefix.strip() else ""

    def as_remote(self, error: Exception) -> Exception:
        """`error` to be raised: a RemoteError with the server's message and without the key, if it is the SDK's."""
        message = self.told(error)
        if message is None or isinstance(error, LmnbError):
            return error
        return self.tell.says(message)

    async def ask(self, prompt: ChatPrompt | TextPrompt, params: SamplingParams, reply: ApiReply) -> None:
        """One streamed call, to its end. RemoteError for an answer that breaks off, is a refusal, or is none."""
        await self.call(prompt, params, reply)
        reply.end(self.tell)

    async def read(self, stream: Any, take: Callable[[Any], None]) -> None:
        """Hand the chunks of an SDK's stream to `take`. RemoteError for what is none, though its status is 200."""
        response = getattr(stream, "response", None)
        if isinstance(kind := getattr(response, "headers", {}).get("content-type", ""), str):
            kind = kind.partition(";")[0].strip().lower()
        if response is not None and kind != "text/event-stream":
            body = await response.aread()
            if not body.lstrip().startswith((b"data:", b"event:", b"id:", b":")):  # by whatever name, that is a stream
                raise self.tell.not_a_stream(body, kind)
        chunk: Any = None
        with self.tell.reading(lambda: chunk):
            async for chunk in stream:
                take(chunk)


class ApiContext:
    """Implements `Context` on a vendor's API: the whole prompt is sent with every call."""

    def __init__(self, backend: ApiBackend, prompt: ChatPrompt | TextPrompt) -> None:
        self._backend = backend
        self._prompt = prompt

    def append(self, text: str, *, data: bool = False) -> None:
        """See `Context.append`."""
        self._prompt.append(text)

    def append_image(self, picture: Picture) -> str:
        """See `SeeingContext.append_image`."""
        return self._prompt.append_image(picture)

    def begin_role(self, role: str) -> str:
        """See `Context.begin_role`."""
        return self._prompt.begin_role(role)

    def end_role(self) -> str:
        """See `Context.end_role`."""
        return self._prompt.end_role()

    def fork(self) -> ApiContext:
        """See `Context.fork`."""
        return ApiContext(self._backend, self._prompt.fork())

    async def commit(self, *, owner: Owner, cancel: CancelToken) -> None:
        """See `Context.commit`: there is no such hint here, and a call for nothing would cost tokens."""

    async def generate(
        self,
        params: SamplingParams,
        *,
        owner: Owner,
        cancel: CancelToken,
        on_delta: Callable[[Delta], None],
        logprob_start: int | None = None,
    ) -> Generation:
        """See `Context.generate`. RemoteError has the API's own message; text that came before it stays."""
        self._backend.capabilities.check(params, self._backend.who)
        if logprob_start is not None:
            raise ArgumentError(
                f"{self._backend.who} gives no log-probabilities of the prompt; leave logprob_start_len out"
            )
        if cancel.cancelled:
            return Generation(text="", finish_reason="cancelled")
        reply = ApiReply(on_delta)
        try:
            finished = await until_cancelled(self._call(params, reply), cancel)
        finally:
            self._prompt.append(reply.text)
        result = reply.generation(cancelled=finished is None)
        if not reply.counted:
            self._backend.token_usage.add(result.prompt_tokens, result.completion_tokens)
        return result

    async def score(self, choices: Sequence[str], *, unconditional: bool, owner: Owner, cancel: CancelToken) -> Scores:
        """See `Context.score`."""
        for choice in choices:
            if not isinstance(choice, str) or not choice:
                raise ArgumentError(f"choices must be non-empty text, not {choice!r}")
        scores = await until_cancelled(self._score(choices, unconditional), cancel)
        if scores is None:
            raise CancelledError("the choice was not made because its run was stopped")
        return scores

    async def _call(self, params: SamplingParams, reply: ApiReply) -> bool:
        backend = self._backend
        value = None if backend.capabilities.regex else plain_value(params.constraint)
        if value is None and backend.wants_objects:
            value = value_of_schema(params.constraint)
        try:
            if value is not None:
                await self._backend.call_for_value(self._prompt, params, value, reply)
                reply.end(self._backend.tell)
            else:
                await self._backend.ask(self._prompt, params, reply)
            await check_schema(self._backend.tell, params, reply.text, reply.finish_reason)
        except Exception as error:
            raise_from(self._backend.as_remote(error), error)
        return True

    async def _score(self, choices: Sequence[str], unconditional: bool) -> Scores:
        try:
            return await self._backend.score(self._prompt, choices, unconditional=unconditional)
        except Exception as error:
            raise_from(self._backend.as_remote(error), error)


def raise_from(error: Exception, original: Exception) -> NoReturn:
    """Raise without the SDK's own error behind it, which holds the request and its key."""
    if error is original:
        raise error
    raise error from None


def status_message(error: Any) -> str:
    """The server's own words in an SDK's error about an HTTP status."""
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error", body)
    told = inner.get("message") if isinstance(inner, dict) else inner
    return f"{told or error.message} (HTTP {error.status_code})"


def _template(wanted: str | ChatTemplate | None, model_name: str) -> ChatTemplate:
    if wanted is None:
        return get_chat_template_by_model_path(model_name)
    return get_chat_template(wanted) if isinstance(wanted, str) else wanted
