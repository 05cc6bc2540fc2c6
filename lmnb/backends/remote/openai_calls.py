"""The arguments of OpenAI's calls, and what its chunks say. Shared by all that speak this dialect (LiteLLM too)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from lmnb.backends.remote.api_reply import ApiReply
from lmnb.backends.remote.token_texts import TokenTexts
from lmnb.backends.remote.unreadable import told_error
from lmnb.backends.well_formed import well_formed
from lmnb.errors import GrammarError, RemoteError
from lmnb.runtime.request import SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from lmnb.backends.remote.api_backend import ApiBackend

Dialect = Literal["openai", "vllm", "sglang"]
DIALECTS = ("openai", "vllm", "sglang")

STANDARD = frozenset({"top_p", "frequency_penalty", "presence_penalty", "seed", "stop"})
# What servers take beyond the standard, with the values that ask for nothing.
_BEYOND: dict[str, tuple[str, Any]] = {
    "top_k": ("top_k", -1),
    "min_p": ("min_p", 0.0),
    "repetition_penalty": ("repetition_penalty", 1.0),
    "min_new_tokens": ("min_tokens", 0),
    "stop_token_ids": ("stop_token_ids", ()),
    "ignore_eos": ("ignore_eos", False),
}
BEYOND = frozenset(_BEYOND)


def sampling_arguments(params: SamplingParams, dialect: Dialect) -> dict[str, Any]:
    """What both kinds of call take. Values that ask for nothing are not sent: some models refuse the very names."""
    found: dict[str, Any] = {
        "temperature": None if params.temperature == 1.0 else params.temperature,
        "top_p": None if params.top_p == 1.0 else params.top_p,
        "frequency_penalty": params.frequency_penalty or None,
        "presence_penalty": params.presence_penalty or None,
        "seed": params.seed,
        "stop": list(params.stop) or None,
    }
    arguments = {name: value for name, value in found.items() if value is not None}
    beyond = {} if dialect == "openai" else _beyond(params)
    return {**arguments, "extra_body": beyond} if beyond else arguments


def chat_arguments(params: SamplingParams, dialect: Dialect, limit_name: str) -> dict[str, Any]:
    """Those of a chat call. `limit_name`: what the API calls the limit of tokens."""
    arguments = {**sampling_arguments(params, dialect), limit_name: params.max_new_tokens}
    if params.return_logprob:
        arguments["logprobs"] = True
        if params.top_logprobs_num:
            arguments["top_logprobs"] = params.top_logprobs_num
    constraint = params.constraint
    if constraint is not None and constraint.kind == "json_schema":
        arguments["response_format"] = response_format(constraint.source)
    elif constraint is not None:
        arguments["extra_body"] = {**arguments.get("extra_body", {}), constraint.kind: constraint.source}
    return arguments


def completion_arguments(params: SamplingParams, dialect: Dialect) -> dict[str, Any]:
    """Those of a completion call."""
    arguments = {**sampling_arguments(params, dialect), "max_tokens": params.max_new_tokens}
    if params.return_logprob:
        arguments["logprobs"] = params.top_logprobs_num
    if params.constraint is not None:
        arguments["extra_body"] = {**arguments.get("extra_body", {}), params.constraint.kind: params.constraint.source}
    return arguments


def response_format(schema: str) -> dict[str, Any]:
    """OpenAI's structured output for a JSON schema (a JSON text)."""
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise GrammarError(f"json_schema must be JSON text, and is not: {error}") from error
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": parsed, "strict": True}}


def read_chat_chunk(chunk: Any, reply: ApiReply, texts: TokenTexts) -> None:
    """One chunk of a chat completion."""
    _read_usage(chunk, reply)
    for choice in chunk.choices or ():
        told = getattr(choice, "logprobs", None)
        entries = [_token(item, texts) for item in (told.content or ())] if told is not None else []
        delta = choice.delta
        if delta is not None:
            reply.refusal += getattr(delta, "refusal", None) or ""
        reply.add((delta.content if delta is not None else None) or "", entries)
        _read_finish(choice, reply)


def read_completion_chunk(chunk: Any, reply: ApiReply, texts: TokenTexts) -> None:
    """One chunk of a completion."""
    _read_usage(chunk, reply)
    for choice in chunk.choices or ():
        told = choice.logprobs
        entries = []
        if told is not None and told.tokens:
            tops = told.top_logprobs or [None] * len(told.tokens)
            for token, value, top in zip(told.tokens, told.token_logprobs or [], tops, strict=False):
                others = tuple((texts.number(text), logprob) for text, logprob in (top or {}).items())
                entries.append(TokenLogprob(texts.number(token), value, others))
        reply.add(choice.text or "", entries)
        _read_finish(choice, reply)


async def complete_once(client: Any, backend: ApiBackend, **arguments: Any) -> Any:
    """The answer of a completion that is not streamed, counted. RemoteError if it has no choices, or no usage."""
    tell = backend.tell
    try:
        answer = await client.completions.create(model=backend.name, **arguments)
    except json.JSONDecodeError as failed:
        raise tell.sent("no completion", failed.doc) from None
    if not hasattr(answer, "choices"):  # what the SDK makes of a page, or of JSON that is no object
        raise tell.sent("no completion", "null" if answer is None else answer)
    told = told_error(as_json(answer))
    if told is not None:
        raise tell.says(told)
    with tell.reading(lambda: as_json(answer)):
        if not answer.choices:
            raise LookupError("it has no choices")
        for choice in answer.choices:
            choice.text = well_formed(choice.text)
        backend.token_usage.add(answer.usage.prompt_tokens, answer.usage.completion_tokens)
    return answer


def as_json(answer: Any) -> Any:
    """An answer of the SDK's as the JSON that it was."""
    return answer.to_dict(warnings=False)


def _beyond(params: SamplingParams) -> dict[str, Any]:
    found = {}
    for name, (sent, neutral) in _BEYOND.items():
        value = getattr(params, name)
        if value != neutral:
            found[sent] = list(value) if isinstance(value, tuple) else value
    return found


def _token(item: Any, texts: TokenTexts) -> TokenLogprob:
    others = tuple((texts.number(top.token), top.logprob) for top in item.top_logprobs or ())
    return TokenLogprob(texts.number(item.token), item.logprob, others)


def _read_usage(chunk: Any, reply: ApiReply) -> None:
    usage = getattr(chunk, "usage", None)
    if usage is None:
        return
    reply.prompt_tokens = usage.prompt_tokens or 0
    reply.completion_tokens = usage.completion_tokens or 0
    details = getattr(usage, "prompt_tokens_details", None)
    reply.cached_tokens = (getattr(details, "cached_tokens", None) or 0) if details is not None else 0


def _read_finish(choice: Any, reply: ApiReply) -> None:
    reason = choice.finish_reason
    if reason is None:
        return
    if reason not in ("stop", "length"):
        raise RemoteError(f"the model's answer ended for the reason {reason!r}; what it said before is in the text")
    reply.finish_reason = reason
    # Not in OpenAI's protocol, but in that of SGLang, lmnb and vLLM.
    matched = getattr(choice, "matched_stop", None)
    reply.matched = matched if matched is not None else getattr(choice, "stop_reason", None)
