"""OpenAI's request bodies for completions and chat, read into engine requests. Knows nothing of answers."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from lmnb.runtime.request import Constraint, Request, SamplingParams
from lmnb.server.fields import Fields
from lmnb.server.http_error import HttpError

if TYPE_CHECKING:
    from lmnb.backends.local import Runtime

# Fields that do nothing here: any value may come where None stands, else only one of these.
_IGNORED: dict[str, Collection[Any] | None] = {
    "user": None,
    "metadata": None,
    "store": (False,),
    "service_tier": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "prompt_cache_options": None,
    "prompt_cache_retention": None,
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": None,
    "modalities": (["text"],),
    "best_of": (1,),
    "suffix": ("",),
}
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Asked:
    """What a call wants: the engine's requests (`n` for each prompt), and the form of the answer."""

    model: str
    requests: list[Request]
    stream: bool
    with_usage: bool  # a last chunk of a stream that tells the tokens
    logprobs: bool
    echo: tuple[str, ...]  # each prompt's text, to be said before the completion; () for none
    num_prompts: int


def read_completion(body: Any, runtime: Runtime) -> Asked:
    """`/v1/completions`."""
    fields = Fields(body)
    model = _model(fields, runtime)
    prompts = _prompts(fields, runtime)
    echo = fields.flag("echo")
    wanted = fields.get("logprobs")
    top = 0 if wanted in (None, False) else 1 if wanted is True else fields.whole("logprobs", 0)
    params, count = _sampling(fields, default_tokens=16)
    logprobs = wanted is not None and wanted is not False
    params = runtime.sampling(replace(params, return_logprob=logprobs, top_logprobs_num=top))
    stream, with_usage = _stream(fields)
    _finish(fields)
    start = 0 if echo and logprobs else None
    requests = [
        Request(input_ids=ids, sampling=_nth(params, i), logprob_start=start) for ids in prompts for i in range(count)
    ]
    said = tuple(runtime.decode(ids) for ids in prompts) if echo else ()
    return Asked(model, requests, stream, with_usage, logprobs, said, len(prompts))


def read_chat(body: Any, runtime: Runtime) -> Asked:
    """`/v1/chat/completions`."""
    fields = Fields(body)
    model = _model(fields, runtime)
    ids = _chat_prompt(fields, runtime)
    logprobs = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0)
    if top and not logprobs:
        raise HttpError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    room = max(runtime.status().context_tokens - len(ids), 1)  # without a limit, the model ends its turn itself
    params, count = _sampling(fields, default_tokens=room)
    params = runtime.sampling(replace(params, return_logprob=logprobs, top_logprobs_num=top), chat=True)
    stream, with_usage = _stream(fields)
    _finish(fields)
    requests = [Request(input_ids=ids, sampling=_nth(params, i)) for i in range(count)]
    return Asked(model, requests, stream, with_usage, logprobs, (), 1)


def _finish(fields: Fields) -> None:
    fields.allow(_IGNORED)
    fields.finish()


def _model(fields: Fields, runtime: Runtime) -> str:
    """One model is served: its name is told, whatever the client called it."""
    fields.text("model")
    return runtime.name


def _stream(fields: Fields) -> tuple[bool, bool]:
    stream = fields.flag("stream")
    options = fields.sub("stream_options")
    with_usage = options.flag("include_usage")
    options.allow({"include_obfuscation": None, "continuous_usage_stats": (False,)})
    options.finish()
    return stream, with_usage


def _prompts(fields: Fields, runtime: Runtime) -> list[tuple[int, ...]]:
    """Text, a list of texts, token ids, or a list of these."""
    prompt = fields.get("prompt", "")
    items = prompt if isinstance(prompt, list) else [prompt]
    if isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
        items = [prompt]
    if not items or not all(isinstance(item, (str, list)) for item in items):
        raise fields.wrong("prompt", "text, token ids, or a list of these")
    result = []
    for item in items:
        if isinstance(item, str):
            result.append(runtime.encode_prompt(item))
        else:
            result.append(Fields({"prompt": item}).ids("prompt"))
    return result


def _chat_prompt(fields: Fields, runtime: Runtime) -> tuple[int, ...]:
    """The messages in the model's own template. Their contents are data: markers in them stay text."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "a list of at least one message")
    continued = fields.flag("continue_final_message")
    prompted = fields.flag("add_generation_prompt", not continued)
    context = runtime.new_context()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        one = Fields(message, where)
        role = one.text("role")
        if role is None:
            raise HttpError(400, f"{where}.role is missing", "messages")
        if role not in _ROLES:
            raise HttpError(400, f"{where}.role is {role[:40]!r}; use one of {', '.join(_ROLES)}", "messages")
        content = _content(one, where)
        one.allow({"name": None, "refusal": None, "tool_calls": ([],), "tool_call_id": ()})
        one.finish()
        context.begin_role("system" if role == "developer" else role)
        context.append(content)
        if not (continued and index == len(messages) - 1):
            context.end_role()
    if continued and messages[-1].get("role") != "assistant":
        raise HttpError(400, "continue_final_message needs a last message of the assistant", "continue_final_message")
    if prompted and not continued:
        context.begin_role("assistant")
    return context.prompt_ids


def _content(fields: Fields, where: str) -> str:
    if "content" not in fields:
        raise HttpError(400, f"{where}.content is missing; it may be empty text", "messages")
    content = fields.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    known = [text for text in texts if isinstance(text, str)]
    if len(known) != len(parts):
        raise HttpError(400, f"{where}.content must be text, or parts of type text: this model reads nothing else")
    return "".join(known)


def _sampling(fields: Fields, *, default_tokens: int) -> tuple[SamplingParams, int]:
    count = fields.count("n")
    limit = fields.whole("max_tokens", default_tokens)
    params = SamplingParams(
        max_new_tokens=fields.whole("max_completion_tokens", limit),
        min_new_tokens=fields.whole("min_tokens", 0),
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        top_k=fields.whole("top_k", -1),
        min_p=fields.number("min_p", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        presence_penalty=fields.number("presence_penalty", 0.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        seed=fields.seed("seed"),
        stop=fields.strings("stop"),
        stop_regex=fields.strings("stop_regex"),
        stop_token_ids=fields.ids("stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        constraint=_constraint(fields),
    )
    return params, count


def _constraint(fields: Fields) -> Constraint | None:
    """`response_format` as OpenAI has it; `regex`, `json_schema` and `ebnf` as SGLang adds them."""
    kinds: tuple[Literal["regex", "json_schema", "ebnf"], ...] = ("regex", "json_schema", "ebnf")
    found = [Constraint(kind, source) for kind in kinds if (source := fields.text(kind)) is not None]
    wanted = fields.sub("response_format")
    kind = wanted.text("type", "text")
    if kind == "json_schema":
        inner = wanted.get("json_schema")
        if not isinstance(inner, dict) or not isinstance(inner.get("schema"), (dict, bool)):
            raise HttpError(400, "response_format.json_schema needs a schema", "response_format")
        found.append(Constraint("json_schema", json.dumps(inner["schema"])))
    elif kind == "json_object":
        found.append(Constraint("json_schema", '{"type": "object"}'))
    elif kind != "text":
        raise HttpError(400, f"response_format {kind!r} is not known; use text, json_object or json_schema")
    wanted.finish()
    if len(found) > 1:
        raise HttpError(
            400, "regex, json_schema, ebnf and response_format exclude each other; send one", "response_format"
        )
    return found[0] if found else None


def _nth(params: SamplingParams, index: int) -> SamplingParams:
    """The sample of that index draws by a seed of its own."""
    return replace(params, seed=params.seed + index) if index and params.seed is not None else params
