"""`OpenAI`: chat and completion models behind OpenAI's API, or any server that speaks it, through the vendor's SDK."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from lmnb.backends.base import Scores
from lmnb.backends.capabilities import Capabilities
from lmnb.backends.plain_values import PlainValue
from lmnb.backends.remote.address import checked_url
from lmnb.backends.remote.api_backend import ApiBackend, status_message
from lmnb.backends.remote.api_reply import ApiReply
from lmnb.backends.remote.chat_prompt import ChatPrompt
from lmnb.backends.remote.loop_clients import LoopClients
from lmnb.backends.remote.openai_calls import (
    BEYOND,
    DIALECTS,
    STANDARD,
    Dialect,
    chat_arguments,
    completion_arguments,
    read_chat_chunk,
    read_completion_chunk,
)
from lmnb.backends.remote.openai_select import Encoding, choose, score_by_echo
from lmnb.backends.remote.openai_values import complete_value
from lmnb.backends.remote.packages import require
from lmnb.backends.remote.secrets import Secret, key_from_environment, refuse_key, shown_url
from lmnb.backends.remote.structured import ask_for_choice, ask_for_value
from lmnb.backends.remote.text_prompt import TextPrompt
from lmnb.backends.templates import ChatTemplate
from lmnb.errors import ArgumentError
from lmnb.runtime.request import SamplingParams

_COMPLETION_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
_NO_KEY = "none"  # the SDK wants some key, also for a server that asks for none


class OpenAI(ApiBackend):
    """A model behind OpenAI's API. Implements `Backend`.

    `base_url`: another server that speaks it (vLLM, SGLang, llama.cpp, `lmnb serve`, Databricks' endpoints).
    The key comes from the environment variable OPENAI_API_KEY, or from the one that `api_key_env` names; a server at
    `base_url` gets no key unless `api_key_env` names one. `is_chat_model`: by default all but the known completion
    models. `server`: what it takes beyond OpenAI's own: "vllm" or "sglang" (also for `lmnb serve`).
    `tokenizer`: for `select` on completion models of another vocabulary than tiktoken's: an object with `encode` and
    `decode`. `is_azure`: Azure's service; other options go to the SDK's client (`azure_endpoint`, `organization`, ...).
    """

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: str | ChatTemplate | None = None,
        is_azure: bool = False,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        server: Dialect = "openai",
        tokenizer: Encoding | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        **client_options: Any,
    ) -> None:
        sdk = require("openai", "lmnb.OpenAI")
        variable = api_key_env or ("AZURE_OPENAI_API_KEY" if is_azure else "OPENAI_API_KEY")
        refuse_key(client_options, variable)
        if server not in DIALECTS:
            raise ArgumentError(f"server must be one of {', '.join(DIALECTS)}, not {server!r}")
        if is_chat_model not in (None, True, False):
            raise ArgumentError(f"is_chat_model must be True, False or None, not {is_chat_model!r}")
        keyless = base_url is not None and api_key_env is None and not is_azure
        key = Secret(None) if keyless else key_from_environment(variable, "lmnb.OpenAI")
        where = base_url or os.environ.get("OPENAI_BASE_URL") or client_options.get("azure_endpoint")
        if where:
            checked_url(where, "lmnb.OpenAI")
        chat = model_name not in _COMPLETION_MODELS if is_chat_model is None else is_chat_model
        super().__init__(
            model_name,
            is_chat_model=chat,
            chat_template=chat_template,
            capabilities=_capabilities(chat, server),
            key=key,
            url=shown_url(where) if where else "api.openai.com",
        )
        self.wants_objects = chat and server == "openai"
        self._sdk = sdk
        self._server: Dialect = server
        self._encoding = tokenizer
        # OpenAI's newer models refuse the older name, and other servers do not all know the newer one.
        self._limit_name = "max_tokens" if where and not is_azure else "max_completion_tokens"
        make = sdk.AsyncAzureOpenAI if is_azure else sdk.AsyncOpenAI
        options = {**client_options, "timeout": timeout, "max_retries": max_retries}
        if base_url is not None:
            options["base_url"] = base_url
        self._clients: LoopClients[Any] = LoopClients(
            lambda: make(api_key=key.reveal() or _NO_KEY, **options), lambda client: client.close()
        )

    def shutdown(self) -> None:
        """Close the connections."""
        self._clients.close()

    def told(self, error: Exception) -> str | None:
        """The server's message."""
        if isinstance(error, self._sdk.APIStatusError):
            return status_message(error)
        return str(error) if isinstance(error, self._sdk.OpenAIError) else None

    async def call(self, prompt: ChatPrompt | TextPrompt, params: SamplingParams, reply: ApiReply) -> None:
        """One streamed call."""
        if isinstance(prompt, ChatPrompt):
            await self._chat(prompt, params, reply)
        else:
            await self._complete(prompt, params, reply)

    async def score(self, prompt: ChatPrompt | TextPrompt, choices: Sequence[str], *, unconditional: bool) -> Scores:
        """By echoed log-probabilities where the server gives these, else by letting the model choose."""
        if isinstance(prompt, ChatPrompt):
            return await ask_for_choice(self, prompt, choices)
        client = self._clients.get()
        if self.capabilities.select == "scored":
            return await score_by_echo(client, self, prompt.text, choices, unconditional=unconditional)
        return await choose(client, self, self._tokenizer(), prompt.text, choices)

    async def call_for_value(
        self, prompt: ChatPrompt | TextPrompt, params: SamplingParams, value: PlainValue, reply: ApiReply
    ) -> None:
        """By structured output in a chat, by a bias in a completion."""
        if isinstance(prompt, ChatPrompt):
            await ask_for_value(self, prompt, params, value, reply)
        else:
            await complete_value(self, self._clients.get(), self._tokenizer, prompt.text, params, value, reply)

    async def _chat(self, prompt: ChatPrompt, params: SamplingParams, reply: ApiReply) -> None:
        messages, prefix = prompt.to_send(self.who)
        arguments = chat_arguments(params, self._server, self._limit_name)
        prefix = self.prefix_to_send(prefix)
        if prefix:
            messages.append({"role": "assistant", "content": prefix})
            going_on = {"continue_final_message": True, "add_generation_prompt": False}
            arguments["extra_body"] = {**arguments.get("extra_body", {}), **going_on}
        if params.constraint is not None and params.constraint.kind == "json_schema":
            reply.meta["constraint"] = "json_schema by response_format"
        stream = await self._clients.get().chat.completions.create(
            model=self.name, messages=messages, stream=True, stream_options={"include_usage": True}, **arguments
        )
        async with stream:
            await self.read(stream, lambda chunk: read_chat_chunk(chunk, reply, self.token_texts))

    async def _complete(self, prompt: TextPrompt, params: SamplingParams, reply: ApiReply) -> None:
        stream = await self._clients.get().completions.create(
            model=self.name,
            prompt=prompt.text,
            stream=True,
            stream_options={"include_usage": True},
            **completion_arguments(params, self._server),
        )
        async with stream:
            await self.read(stream, lambda chunk: read_completion_chunk(chunk, reply, self.token_texts))

    def _tokenizer(self) -> Encoding:
        if self._encoding is None:
            tiktoken = require("tiktoken", "select on OpenAI's completion models")
            try:
                encoding: Encoding = tiktoken.encoding_for_model(self.name)
            except KeyError as error:
                raise ArgumentError(
                    f"no tokenizer is known for {self.name!r}, which select needs; pass tokenizer=, "
                    "or server='vllm' or 'sglang' if it runs there"
                ) from error
            self._encoding = encoding
        return self._encoding


def _capabilities(chat: bool, server: Dialect) -> Capabilities:
    more = server != "openai"
    own = server == "sglang"
    if chat:
        return Capabilities(
            logprobs="with top_logprobs",
            select="structured",
            regex="by the server" if own else "",
            plain_values="by response_format",
            json_schema="by response_format",
            ebnf="by the server" if own else "",
            cancel="by closing the stream",
            images=True,
            continues_turn=more,
            data_is_text=True,
            speculation=True,
            sampling=STANDARD | BEYOND if more else STANDARD,
        )
    return Capabilities(
        logprobs="with top_logprobs",
        select="scored" if more else "guided",
        regex="by the server" if own else "",
        plain_values="" if more else "by logit_bias and stops (not float)",
        json_schema="by the server" if own else "",
        ebnf="by the server" if own else "",
        cancel="by closing the stream",
        continues_turn=True,
        speculation=True,
        sampling=STANDARD | BEYOND if more else STANDARD,
    )
