"""Plain values from completion models, which have no structured output: by a bias on tokens, or a quote and stops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lmnb.backends.plain_values import PlainValue
from lmnb.backends.remote.api_reply import ApiReply
from lmnb.backends.remote.openai_calls import complete_once, sampling_arguments
from lmnb.backends.remote.openai_select import BIAS, Encoding, choose
from lmnb.errors import ArgumentError, RemoteError
from lmnb.runtime.request import SamplingParams

if TYPE_CHECKING:
    from lmnb.backends.remote.api_backend import ApiBackend

_QUOTE_STOPS = ['"', "\n", "\\"]  # what a text in quotes does not hold
_ENDS = (" ", "\n")


async def complete_value(
    backend: ApiBackend,
    client: Any,
    tokenizer: Callable[[], Encoding],
    prompt: str,
    params: SamplingParams,
    value: PlainValue,
    reply: ApiReply,
) -> None:
    """Fill `reply` with the value's text, in one piece. ArgumentError for a number with a decimal point, which no bias
    keeps to one point; RemoteError from a server that ignores the bias."""
    if value.name == "float":
        raise ArgumentError(
            f"{backend.who} cannot enforce dtype=float on a completion model; use dtype=int, a chat model, "
            "lmnb.Runtime or an SGLang server"
        )
    calls = _Calls(backend, client, params, reply)
    reply.finish_reason = "stop"
    reply.counted = True  # call by call
    if value.choices:
        scores = await choose(client, backend, tokenizer(), prompt, value.choices)
        counts = [score.num_chosen or 0 for score in scores.choices]
        text = value.choices[counts.index(max(counts))]
        reply.prompt_tokens, reply.completion_tokens = scores.prompt_tokens, 0
        how = "logit_bias"
    elif value.name == "str":
        said, ended = await calls.ask(prompt + '"', params.max_new_tokens, stop=_QUOTE_STOPS)
        text = f'"{said}"' if ended else f'"{said}'
        reply.finish_reason = "stop" if ended else "length"
        how = "a quote and stops"
    else:
        text = await _whole_number(calls, tokenizer(), prompt, params.max_new_tokens)
        how = "logit_bias"
    reply.meta["constraint"] = f"{value.name} by {how}"
    reply.add(text)


async def _whole_number(calls: _Calls, encoding: Encoding, prompt: str, limit: int) -> str:
    """First a digit (behind a sign perhaps), then digits until a space or a line break."""
    digits = _single(encoding, (str(number) for number in range(10)))
    digits |= _single(encoding, (f"{number:02}" for number in range(100)))
    ids, text = encoding.encode(prompt), ""
    while not text[-1:].isdigit() and limit > 0:
        allowed = digits if text else digits | _single(encoding, "-")
        said, _ = await calls.ask(ids + encoding.encode(text), 1, bias=allowed)
        limit -= 1
        if not said.strip("-").isdigit() and (text or said != "-"):
            raise RemoteError(f"the model said {said!r} where only digits were allowed; its server ignores logit_bias")
        text += said
    if limit > 0:
        allowed = digits | _single(encoding, _ENDS)
        said, ended = await calls.ask(ids + encoding.encode(text), limit, bias=allowed, stop=list(_ENDS))
        if said and not said.isdigit():
            raise RemoteError(f"the model said {said!r} where only digits were allowed; its server ignores logit_bias")
        text += said
        if ended:
            return text
    calls.reply.finish_reason = "length"
    return text


def _single(encoding: Encoding, texts: Iterable[str]) -> set[int]:
    """The tokens of those texts that are one."""
    encoded = [encoding.encode(text) for text in texts]
    return {ids[0] for ids in encoded if len(ids) == 1}


@dataclass
class _Calls:
    """The calls that one value takes, and what they cost together."""

    backend: ApiBackend
    client: Any
    params: SamplingParams
    reply: ApiReply

    async def ask(
        self, prompt: str | list[int], limit: int, *, bias: Iterable[int] = (), stop: list[str] | None = None
    ) -> tuple[str, bool]:
        """What comes next, and whether it ended by itself."""
        arguments = sampling_arguments(replace(self.params, stop=tuple(stop or ())), "openai")
        if bias:
            arguments["logit_bias"] = {str(token): BIAS for token in sorted(bias)}
        answer = await complete_once(self.client, self.backend, prompt=prompt, max_tokens=limit, **arguments)
        self.reply.prompt_tokens += answer.usage.prompt_tokens
        self.reply.completion_tokens = (self.reply.completion_tokens or 0) + answer.usage.completion_tokens
        return answer.choices[0].text, answer.choices[0].finish_reason == "stop"
