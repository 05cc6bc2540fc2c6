"""DSPy's requests read into the turns and options of a program, and its replies, and errors, told in DSPy's types."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lmnb.dspy.package import lm15
from lmnb.errors import LmnbError, RequestTooLongError
from lmnb.language.expressions import Expr, ExprList, flatten
from lmnb.language.primitives import image
from lmnb.language.state import ProgramState

REPLY = "reply"  # the variable that a call's text is kept in
_FINISH = {"stop": "stop", "length": "length"}


def read(request: Any) -> tuple[list[tuple[str, Expr]], dict[str, Any]]:
    """A request's turns, as (role, content), and the options of its `gen`, without the seed. UnsupportedFeatureError,
    by name, for what no backend here can do."""
    config = request.config
    if request.tools:
        raise unsupported("native tools, which DSPy's adapters can describe in the prompt instead", "tools")
    if config.reasoning is not None and config.reasoning.effort != "off":
        raise unsupported("a reasoning effort", "config.reasoning")
    if config.cache is not None:
        raise unsupported("prompt_cache (beginnings are shared by themselves)", "config.cache")
    if config.probabilities == "required":
        raise unsupported("probabilities of a schema's keys", "config.probabilities")
    for name in ("service_tier", "store"):
        if getattr(config, name):
            raise unsupported(name, f"config.{name}")
    for name in config.extensions or ():
        raise unsupported(repr(name), f"config.extensions.{name}")
    turns = [] if request.system is None else [("system", _content(request.system, "system"))]
    for index, message in enumerate(request.messages):
        role = "system" if message.role == "developer" else message.role
        if role == "tool":
            raise unsupported("results of native tool calls", f"messages[{index}]")
        turns.append((role, _content(message.parts, f"messages[{index}]")))
    options = {
        "max_tokens": config.max_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "stop": config.stop or None,
        "frequency_penalty": config.frequency_penalty,
        "presence_penalty": config.presence_penalty,
        "json_schema": _schema(config.response_format),
    }
    if config.logprobs is not None:
        options |= {"return_logprob": True, "top_logprobs_num": config.logprobs, "return_text_in_logprobs": True}
    return turns, options


def _content(parts: str | Sequence[Any], where: str) -> Expr:
    """A turn's texts and images, in order."""
    nodes: list[Expr] = []
    for index, part in enumerate((lm15.TextPart(parts),) if isinstance(parts, str) else parts):
        place = f"{where}.parts[{index}]"
        if part.type == "text":
            nodes += flatten(part.text)
        elif part.type != "image":
            raise unsupported(f"a part of type {part.type!r}", place)
        elif part.data is None and part.path is None:
            raise unsupported("images by their address (dspy.Image.from_url gets the image itself)", place)
        else:
            nodes.append(image(part.path if part.data is None else base64.b64decode(part.data)))
    return ExprList(tuple(nodes))


def _schema(wanted: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if wanted is None:
        return None
    schema: Mapping[str, Any] = {"type": "object"} if wanted["type"] == "json_object" else wanted["schema"]
    return schema


def response_of(state: ProgramState, text: str, request: Any) -> Any:
    """DSPy's form of a finished reply. ProviderError if it was cancelled."""
    meta = state.get_meta_info(REPLY) or {}
    reason = meta["finish_reason"]["type"]
    if reason not in _FINISH:
        raise lm15.ProviderError(f"the generation was {reason}", provider="lmnb")
    prompt, generated = meta["prompt_tokens"], meta["completion_tokens"]
    return lm15.Response(
        id=str(meta["id"]),
        model=request.model,
        message=lm15.Message.assistant(text),
        finish_reason=_FINISH[reason],
        usage=lm15.Usage(
            input_tokens=prompt,
            output_tokens=generated,
            total_tokens=prompt + generated,
            cache_read_tokens=meta["cached_tokens"],
        ),
        logprobs=None if request.config.logprobs is None else _logprobs(meta),
    )


def _logprobs(meta: Mapping[str, Any]) -> tuple[Any, ...]:
    chosen = meta["output_token_logprobs"]
    tops = meta.get("output_top_logprobs") or [()] * len(chosen)
    return tuple(
        lm15.TokenLogprob(text, value, token_id=_id(token), top=tuple(lm15.TopLogprob(t, v) for v, _, t in top))
        for (value, token, text), top in zip(chosen, tops, strict=True)
    )


def _id(token: int) -> int | None:
    return token if token >= 0 else None  # APIs tell none


def end_of(response: Any) -> Any:
    """The last event of a stream whose pieces were this response's text."""
    return lm15.StreamEndEvent(finish_reason=response.finish_reason, usage=response.usage)


def unsupported(what: str, feature: str) -> Exception:
    """The error for something asked that is not done here; `feature` is its place in the request."""
    error: Exception = lm15.UnsupportedFeatureError(f"lmnb.dspy does not take {what}; leave it out", feature=feature)
    return error


@contextmanager
def as_lm15() -> Iterator[None]:
    """Errors of ours as DSPy's engines raise them, which DSPy then tells in its own words."""
    try:
        yield
    except RequestTooLongError as error:
        raise lm15.ContextLengthError(str(error), provider="lmnb") from error
    except LmnbError as error:
        cause = error.__cause__
        while isinstance(cause, LmnbError):
            if isinstance(cause, RequestTooLongError):
                raise lm15.ContextLengthError(str(cause), provider="lmnb") from error
            error, cause = cause, cause.__cause__
        kind = lm15.InvalidRequestError if isinstance(error, ValueError) else lm15.ProviderError
        raise kind(f"{type(error).__name__}: {error}", provider="lmnb") from error
