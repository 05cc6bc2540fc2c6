"""`LiteLLM`: the many vendors that the litellm package knows, by its one chat call."""

from __future__ import annotations

from typing import Any

from lmnb.backends.capabilities import Capabilities
from lmnb.backends.remote.address import checked_url
from lmnb.backends.remote.api_backend import ApiBackend
from lmnb.backends.remote.api_reply import ApiReply
from lmnb.backends.remote.chat_prompt import ChatPrompt
from lmnb.backends.remote.openai_calls import STANDARD, chat_arguments, read_chat_chunk
from lmnb.backends.remote.packages import require
from lmnb.backends.remote.secrets import Secret, refuse_key, shown_url
from lmnb.backends.remote.text_prompt import TextPrompt
from lmnb.backends.templates import ChatTemplate
from lmnb.runtime.request import SamplingParams


class LiteLLM(ApiBackend):
    """A chat model by its litellm name ("vendor/model"). Implements `Backend`.

    litellm takes the vendor's key from the vendor's environment variable. A parameter that the vendor does not have is
    refused by litellm, whose message is passed on. Other options go to its call.
    """

    wants_objects = True  # as OpenAI's API does, whose form it has

    def __init__(
        self,
        model_name: str,
        chat_template: str | ChatTemplate | None = None,
        *,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        **call_options: Any,
    ) -> None:
        refuse_key(call_options, "of the vendor (litellm's documentation names it)")
        self._litellm = require("litellm", "lmnb.LiteLLM", "litellm")
        self._litellm.suppress_debug_info = True  # it would print advice into the cell; its errors say it all
        super().__init__(
            model_name,
            is_chat_model=True,
            chat_template=chat_template,
            capabilities=Capabilities(
                logprobs="where the vendor gives them",
                select="structured",
                plain_values="by response_format",
                json_schema="by response_format",
                cancel="by closing the stream",
                images=True,
                data_is_text=True,
                speculation=True,
                sampling=STANDARD,
            ),
            key=Secret(None),
            url=shown_url(checked_url(base_url, "lmnb.LiteLLM")) if base_url else "the vendor's address",
        )
        self._options = {**call_options, "timeout": timeout, "num_retries": max_retries}
        if base_url is not None:
            self._options["api_base"] = base_url

    def shutdown(self) -> None:
        """Nothing to do: litellm keeps its own connections."""

    def told(self, error: Exception) -> str | None:
        """The vendor's message: litellm's errors all have one."""
        if type(error).__module__.startswith(("litellm", "openai")):
            status = getattr(error, "status_code", None)
            message = getattr(error, "message", None) or str(error)
            return f"{message} (HTTP {status})" if status else message
        return None

    async def call(self, prompt: ChatPrompt | TextPrompt, params: SamplingParams, reply: ApiReply) -> None:
        """One streamed call."""
        assert isinstance(prompt, ChatPrompt)
        messages, prefix = prompt.to_send(self.who)
        self.prefix_to_send(prefix)
        if params.constraint is not None:
            reply.meta["constraint"] = "json_schema by response_format"
        stream = await self._litellm.acompletion(
            model=self.name,
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            **chat_arguments(params, "openai", "max_tokens"),
            **self._options,
        )
        try:
            await self.read(stream, lambda chunk: read_chat_chunk(chunk, reply, self.token_texts))
            if not _has_ended(stream):
                reply.finish_reason = None
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()


def _has_ended(stream: Any) -> bool:
    """Whether the vendor said that the answer ended. litellm says so by itself when a stream breaks off."""
    told = [getattr(stream, name, "") for name in ("received_finish_reason", "intermittent_finish_reason")]
    return any(reason is not None for reason in told)
