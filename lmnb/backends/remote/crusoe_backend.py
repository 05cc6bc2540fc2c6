"""`Crusoe`: models that Crusoe serves, which speak OpenAI's protocol."""

from __future__ import annotations

from typing import Any

from lmnb.backends.remote.openai_backend import OpenAI
from lmnb.backends.templates import ChatTemplate

URL = "https://managed-inference-api-proxy.crusoecloud.com/v1/"


class Crusoe(OpenAI):
    """A chat model that Crusoe serves: `OpenAI` with its address. Implements `Backend`.

    The key comes from the environment variable CRUSOE_API_KEY, or from the one that `api_key_env` names. `base_url`:
    another address of the service, should it move. Other options are those of `OpenAI`.
    """

    def __init__(
        self,
        model_name: str,
        *,
        base_url: str | None = None,
        api_key_env: str = "CRUSOE_API_KEY",
        chat_template: str | ChatTemplate | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            model_name, chat_template=chat_template, base_url=base_url or URL, api_key_env=api_key_env, **options
        )
