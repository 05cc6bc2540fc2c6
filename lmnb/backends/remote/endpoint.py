"""`RuntimeEndpoint`: an SGLang server (or `lmnb serve`) somewhere else, by SGLang's native protocol."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmnb.backends.capabilities import ALL_SAMPLING, Capabilities
from lmnb.backends.jinja_template import JinjaTemplate
from lmnb.backends.remote.endpoint_context import EndpointContext
from lmnb.backends.remote.secrets import Secret, shown_url
from lmnb.backends.remote.text_prompt import TextPrompt
from lmnb.backends.remote.token_texts import TokenTexts
from lmnb.backends.remote.token_usage import TokenUsage
from lmnb.backends.remote.wire import Wire
from lmnb.backends.templates import ChatTemplate, get_chat_template, get_chat_template_by_model_path
from lmnb.backends.unpicklable import Unpicklable
from lmnb.errors import ArgumentError, RemoteError

if TYPE_CHECKING:
    from types import TracebackType

_SECRET_FIELDS = ("api_key", "admin_api_key")


class RuntimeEndpoint(Unpicklable):
    """A remote SGLang server at `base_url`. Implements `Backend`; all methods may be called from any thread.

    `api_key` is sent as a bearer token (take it from the environment, so that no notebook holds it). `verify`: a CA
    file, or False to trust any certificate. `timeout`: seconds without a sign of life. `retries`: how often a call that
    was not answered is sent again. The chat template is the one named, else the tokenizer's own where the server tells
    it (`lmnb serve` does), else a named one that fits the model's path; the repr says which, and how it was found.
    Raises RemoteError if there is no such server.
    """

    _instead = "make one again where it is needed, with lmnb.RuntimeEndpoint(url)"
    capabilities = Capabilities(
        logprobs="with top_logprobs, and of the prompt",
        select="scored",
        regex="by the server",
        json_schema="by the server",
        ebnf="by the server",
        cancel="on the server, by closing the stream and /abort_request",
        images=True,
        continues_turn=True,
        sampling=ALL_SAMPLING,
    )

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | bool | None = None,
        chat_template_name: str | None = None,
        *,
        timeout: float = 600.0,
        retries: int = 2,
    ) -> None:
        self.base_url = base_url
        self.wire = Wire(base_url, Secret(api_key), verify, timeout, retries)
        info = self.wire.get("/get_model_info")
        if not isinstance(info, dict) or not info.get("model_path"):  # the address is another server's
            raise RemoteError(f"the server at {self.wire.shown} is no SGLang server: /get_model_info names no model")
        self.name = str(info["model_path"])
        # Newer servers tell whether their model sees; what an older one says to an image is passed on.
        self.capabilities = replace(type(self).capabilities, images=info.get("has_image_understanding") is not False)
        self._chat_template, self._template_source = _template(chat_template_name, info)
        self.token_texts = TokenTexts()
        self.token_usage = TokenUsage()

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        template = f"{self.chat_template.name} ({self._template_source})"
        where = shown_url(self.base_url)
        return f"RuntimeEndpoint({where!r}, {self.name!r}; chat template: {template}; {self.capabilities})"

    @property
    def chat_template(self) -> ChatTemplate:
        """What writes the roles of states that are made from now on. Another one can be set."""
        return self._chat_template

    @chat_template.setter
    def chat_template(self, template: ChatTemplate) -> None:
        if not callable(getattr(template, "begin", None)):
            raise ArgumentError(f"a chat template is what get_chat_template(name) returns, not {template!r}")
        self._chat_template, self._template_source = template, "set by the program"

    @property
    def stop(self) -> tuple[str, ...]:
        """The chat template's stops."""
        return self._chat_template.stop

    def get_model_name(self) -> str:
        """The model's path on the server."""
        return self.name

    def new_context(self) -> EndpointContext:
        """An empty prompt."""
        return EndpointContext(self, TextPrompt(self.chat_template))

    def token_text(self, token_id: int) -> str:
        """The token's text, if an answer has told it."""
        return self.token_texts.text(token_id)

    def flush_cache(self) -> bool:
        """Empty the server's cache; False if it is busy."""
        try:
            self.wire.post("/flush_cache")
        except RemoteError as error:
            if "HTTP 400" in str(error):
                return False
            raise
        return True

    def get_server_info(self) -> dict[str, Any]:
        """What the server tells of itself, without its keys; and what lmnb makes of it."""
        try:
            told = self.wire.get("/server_info")
        except RemoteError:  # an older server
            told = self.wire.get("/get_server_info")
        told = told if isinstance(told, dict) else {}
        return {
            **{name: value for name, value in told.items() if name not in _SECRET_FIELDS},
            "url": shown_url(self.base_url),
            "chat_template": self.chat_template.name,
            "chat_template_source": self._template_source,
            "stop": list(self.stop),
            "capabilities": self.capabilities.as_dict(),
        }

    def shutdown(self) -> None:
        """Close the connections. The server goes on."""
        self.wire.close()


def _template(wanted: str | None, info: dict[str, Any]) -> tuple[ChatTemplate, str]:
    """The chat template, and where it came from."""
    if wanted is not None:
        return get_chat_template(wanted), "argument"
    told = info.get("chat_template")
    own = JinjaTemplate.from_wire(told, "tokenizer")
    if own is not None:
        return own, "the server's tokenizer"
    if isinstance(told, dict) and isinstance(told.get("name"), str):
        with suppress(ArgumentError):  # the server knows one that this process does not
            return get_chat_template(told["name"]), "the server"
    found = get_chat_template_by_model_path(str(info["model_path"]))
    return found, "the model's name" if found.name != "default" else "nothing fits the model's name"
