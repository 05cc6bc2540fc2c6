"""`Anthropic`: Claude models through the vendor's SDK (its Messages API)."""

from __future__ import annotations

import os
from typing import Any

from lmnb.backends.capabilities import Capabilities
from lmnb.backends.content_parts import anthropic_image
from lmnb.backends.remote.address import checked_url
from lmnb.backends.remote.api_backend import ApiBackend, status_message
from lmnb.backends.remote.api_reply import ApiReply
from lmnb.backends.remote.chat_prompt import ChatPrompt
from lmnb.backends.remote.loop_clients import LoopClients
from lmnb.backends.remote.openai_calls import response_format
from lmnb.backends.remote.packages import require
from lmnb.backends.remote.secrets import key_from_environment, refuse_key, shown_url
from lmnb.backends.remote.system_turns import split_system
from lmnb.backends.remote.text_prompt import TextPrompt
from lmnb.backends.templates import ChatTemplate
from lmnb.errors import RemoteError
from lmnb.runtime.request import SamplingParams

_KEY = "ANTHROPIC_API_KEY"
_ENDS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


class Anthropic(ApiBackend):
    """A Claude model. Implements `Backend`.

    The key comes from the environment variable ANTHROPIC_API_KEY, or from the one that `api_key_env` names. The system
    turn goes with every call. Text before `gen` in an assistant turn is sent as the turn's beginning; models that do
    not take one say so. Other options go to the SDK's client.
    """

    def __init__(
        self,
        model_name: str,
        chat_template: str | ChatTemplate | None = "claude",
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        **client_options: Any,
    ) -> None:
        sdk = require("anthropic", "lmnb.Anthropic")
        variable = api_key_env or _KEY
        refuse_key(client_options, variable)
        key = key_from_environment(variable, "lmnb.Anthropic")
        where = base_url or os.environ.get("ANTHROPIC_BASE_URL")
        if where:
            checked_url(where, "lmnb.Anthropic")
        super().__init__(
            model_name,
            is_chat_model=True,
            chat_template=chat_template,
            capabilities=Capabilities(
                select="structured",
                plain_values="by output_config",
                json_schema="by output_config",
                cancel="by closing the stream",
                images=True,
                continues_turn=True,
                data_is_text=True,
                speculation=True,
                sampling=frozenset({"top_p", "top_k", "stop"}),
            ),
            key=key,
            url=shown_url(where) if where else "api.anthropic.com",
        )
        self._sdk = sdk
        options = {**client_options, "timeout": timeout, "max_retries": max_retries}
        if base_url is not None:
            options["base_url"] = base_url
        self._clients: LoopClients[Any] = LoopClients(
            lambda: sdk.AsyncAnthropic(api_key=key.reveal(), **options), lambda client: client.close()
        )

    def shutdown(self) -> None:
        """Close the connections."""
        self._clients.close()

    def told(self, error: Exception) -> str | None:
        """The server's message."""
        if isinstance(error, self._sdk.APIStatusError):
            return status_message(error)
        return str(error) if isinstance(error, self._sdk.AnthropicError) else None

    async def call(self, prompt: ChatPrompt | TextPrompt, params: SamplingParams, reply: ApiReply) -> None:
        """One streamed call."""
        assert isinstance(prompt, ChatPrompt)
        messages, prefix = prompt.to_send(self.who, anthropic_image)
        system, messages = split_system(messages, self.who)
        prefix = self.prefix_to_send(prefix)
        if prefix:
            messages.append({"role": "assistant", "content": prefix})
        arguments = _arguments(params)
        if system:
            arguments["system"] = system
        if params.constraint is not None:
            reply.meta["constraint"] = "json_schema by output_config"
        stream = await self._clients.get().messages.create(model=self.name, messages=messages, stream=True, **arguments)
        async with stream:
            await self.read(stream, lambda event: _read(event, reply))


def _arguments(params: SamplingParams) -> dict[str, Any]:
    arguments: dict[str, Any] = {"max_tokens": params.max_new_tokens}
    if params.stop:
        arguments["stop_sequences"] = list(params.stop)
    # In the body, because SDKs differ in which of these they still take by name.
    body: dict[str, Any] = {
        name: value
        for name, value, neutral in (
            ("temperature", params.temperature, 1.0),
            ("top_p", params.top_p, 1.0),
            ("top_k", params.top_k, -1),
        )
        if value != neutral
    }
    if params.constraint is not None:
        schema = response_format(params.constraint.source)["json_schema"]["schema"]
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return {**arguments, "extra_body": body} if body else arguments


def _read(event: Any, reply: ApiReply) -> None:
    if event.type == "message_start":
        usage = event.message.usage
        cached = getattr(usage, "cache_read_input_tokens", None) or 0
        created = getattr(usage, "cache_creation_input_tokens", None) or 0
        reply.cached_tokens = cached
        reply.prompt_tokens = (usage.input_tokens or 0) + cached + created
        reply.meta["id"] = event.message.id
    elif event.type == "content_block_delta" and event.delta.type == "text_delta":
        reply.add(event.delta.text)
    elif event.type == "message_delta":
        reply.completion_tokens = event.usage.output_tokens
        reason = event.delta.stop_reason
        if reason not in _ENDS:
            raise RemoteError(f"the model's answer ended for the reason {reason!r}; what it said before is in the text")
        reply.finish_reason = "length" if reason == "max_tokens" else "stop"
        reply.matched = event.delta.stop_sequence
