"""`VertexAI`: Gemini models on Google Cloud, through the vendor's SDK (`google-genai`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lmnb.backends.capabilities import Capabilities
from lmnb.backends.images import ImageData
from lmnb.backends.remote.address import checked_url
from lmnb.backends.remote.api_backend import ApiBackend
from lmnb.backends.remote.api_reply import ApiReply
from lmnb.backends.remote.chat_prompt import ChatPrompt
from lmnb.backends.remote.loop_clients import LoopClients
from lmnb.backends.remote.openai_calls import response_format
from lmnb.backends.remote.packages import require
from lmnb.backends.remote.secrets import Secret, refuse_key, shown_url
from lmnb.backends.remote.system_turns import split_system
from lmnb.backends.remote.text_prompt import TextPrompt
from lmnb.backends.templates import ChatTemplate
from lmnb.errors import ArgumentError, RemoteError
from lmnb.runtime.request import SamplingParams, TokenLogprob

_PROJECT = ("GCP_PROJECT_ID", "GOOGLE_CLOUD_PROJECT")
_LOCATION = ("GCP_LOCATION", "GOOGLE_CLOUD_LOCATION")
_ENDS = {"STOP": "stop", "MAX_TOKENS": "length"}


class VertexAI(ApiBackend):
    """A Gemini model on Google Cloud. Implements `Backend`.

    Project and location come from the environment variables GCP_PROJECT_ID and GCP_LOCATION (or Google's own
    GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION), credentials from where Google's libraries look for them (`gcloud
    auth application-default login`). The system turn goes with every call. `safety_settings`: a mapping of categories
    to thresholds, or a list as the SDK takes it. Other options go to the SDK's client.
    """

    def __init__(
        self,
        model_name: str,
        safety_settings: Mapping[str, str] | Sequence[Any] | None = None,
        *,
        chat_template: str | ChatTemplate | None = None,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        **client_options: Any,
    ) -> None:
        self._genai = require("google.genai", "lmnb.VertexAI", "'lmnb[google]'")
        refuse_key(client_options, "GOOGLE_APPLICATION_CREDENTIALS, which names a file")
        project = client_options.pop("project", None) or _from_environment(_PROJECT, "project")
        location = client_options.pop("location", None) or _from_environment(_LOCATION, "location")
        if base_url:
            checked_url(base_url, "lmnb.VertexAI")
        super().__init__(
            model_name,
            is_chat_model=True,
            chat_template=chat_template,
            capabilities=Capabilities(
                logprobs="with top_logprobs",
                select="structured",
                plain_values="by response_json_schema",
                json_schema="by response_json_schema",
                cancel="by closing the stream",
                images=True,
                data_is_text=True,
                speculation=True,
                sampling=frozenset({"top_p", "top_k", "frequency_penalty", "presence_penalty", "seed", "stop"}),
            ),
            key=Secret(None),
            url=shown_url(base_url) if base_url else f"Vertex AI, {project} in {location}",
        )
        self._safety = _safety_list(safety_settings)
        http: dict[str, Any] = {"timeout": int(timeout * 1000), "retry_options": {"attempts": max_retries + 1}}
        if base_url is not None:
            http["base_url"] = base_url
        options = {"vertexai": True, "project": project, "location": location, "http_options": http, **client_options}
        self._clients: LoopClients[Any] = LoopClients(
            lambda: self._genai.Client(**options), lambda client: client.aio.aclose()
        )

    def shutdown(self) -> None:
        """Close the connections."""
        self._clients.close()

    def told(self, error: Exception) -> str | None:
        """Google's message."""
        if isinstance(error, self._genai.errors.APIError):
            return f"{error.message or error} (HTTP {error.code})"
        if type(error).__module__.startswith("google."):  # no credentials, an option that the SDK does not know
            return str(error)
        return None

    async def call(self, prompt: ChatPrompt | TextPrompt, params: SamplingParams, reply: ApiReply) -> None:
        """One streamed call."""
        assert isinstance(prompt, ChatPrompt)
        messages, prefix = prompt.to_send(self.who, _image)
        self.prefix_to_send(prefix)
        system, messages = split_system(messages, self.who)
        if params.constraint is not None:
            reply.meta["constraint"] = "json_schema by response_json_schema"
        stream = await self._clients.get().aio.models.generate_content_stream(
            model=self.name,
            contents=[self._content(message["role"], message["content"]) for message in messages],
            config=_config(params, system, self._safety),
        )
        await self.read(stream, lambda chunk: self._read(chunk, reply))

    def _content(self, role: str, content: str | list[dict[str, Any]]) -> Any:
        types = self._genai.types
        parts: list[dict[str, Any]] = [{"text": content}] if isinstance(content, str) else content
        made = [
            types.Part.from_bytes(data=part["image"].data, mime_type=part["image"].mime)
            if "image" in part
            else types.Part.from_text(text=part["text"])
            for part in parts
        ]
        return types.Content(role="model" if role == "assistant" else "user", parts=made)

    def _read(self, chunk: Any, reply: ApiReply) -> None:
        usage = chunk.usage_metadata
        if usage is not None:
            reply.prompt_tokens = usage.prompt_token_count or reply.prompt_tokens
            reply.cached_tokens = usage.cached_content_token_count or reply.cached_tokens
            thoughts = usage.thoughts_token_count or 0
            if usage.candidates_token_count is not None or thoughts:
                reply.completion_tokens = (usage.candidates_token_count or 0) + thoughts
        blocked = getattr(chunk.prompt_feedback, "block_reason", None)
        if blocked is not None:
            raise RemoteError(f"the prompt was blocked for the reason {blocked.value}; see safety_settings")
        for candidate in chunk.candidates or ():
            parts = (candidate.content.parts if candidate.content is not None else None) or ()
            text = "".join(part.text or "" for part in parts if not part.thought)
            reply.add(text, self._logprobs(candidate.logprobs_result))
            if candidate.finish_reason is not None:
                reason = candidate.finish_reason.value
                if reason not in _ENDS:
                    raise RemoteError(
                        f"the model's answer ended for the reason {reason}; what it said before is in the text"
                    )
                reply.finish_reason = "length" if reason == "MAX_TOKENS" else "stop"

    def _logprobs(self, result: Any) -> list[TokenLogprob]:
        if result is None or not result.chosen_candidates:
            return []
        tops = [group.candidates or [] for group in result.top_candidates or ()] or [[]] * len(result.chosen_candidates)
        texts = self.token_texts
        return [
            TokenLogprob(
                texts.number(one.token or ""),
                one.log_probability,
                tuple((texts.number(other.token or ""), other.log_probability) for other in top),
            )
            for one, top in zip(result.chosen_candidates, tops, strict=False)
        ]


def _from_environment(names: tuple[str, ...], what: str) -> str:
    for name in names:
        if value := os.environ.get(name):
            return value
    raise ArgumentError(f"lmnb.VertexAI needs a {what}: set the environment variable {names[0]}, or pass {what}=")


def _safety_list(settings: Mapping[str, str] | Sequence[Any] | None) -> list[Any] | None:
    if settings is None:
        return None
    if isinstance(settings, Mapping):
        return [{"category": category, "threshold": threshold} for category, threshold in settings.items()]
    return list(settings)


def _image(image: ImageData) -> dict[str, Any]:
    return {"image": image}


def _config(params: SamplingParams, system: str, safety: list[Any] | None) -> dict[str, Any]:
    """Values that ask for nothing are not sent: some models refuse the very names."""
    found: dict[str, Any] = {
        "max_output_tokens": params.max_new_tokens,
        "temperature": None if params.temperature == 1.0 else params.temperature,
        "top_p": None if params.top_p == 1.0 else params.top_p,
        "top_k": None if params.top_k == -1 else params.top_k,
        "frequency_penalty": params.frequency_penalty or None,
        "presence_penalty": params.presence_penalty or None,
        "seed": params.seed,
        "stop_sequences": list(params.stop) or None,
        "response_logprobs": True if params.return_logprob else None,
        "logprobs": params.top_logprobs_num or None,
        "system_instruction": system or None,
        "safety_settings": safety,
    }
    if params.constraint is not None:
        found["response_mime_type"] = "application/json"
        found["response_json_schema"] = response_format(params.constraint.source)["json_schema"]["schema"]
    return {name: value for name, value in found.items() if value is not None}
