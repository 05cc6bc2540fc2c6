"""Plain values and choices from chat APIs, by their own structured output: asked for as JSON, written as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lmnb.backends.base import ChoiceScore, Scores
from lmnb.backends.plain_values import PlainValue, one_of
from lmnb.backends.remote.api_reply import ApiReply
from lmnb.backends.remote.chat_prompt import ChatPrompt
from lmnb.errors import ArgumentError, RemoteError
from lmnb.runtime.request import Constraint, SamplingParams

if TYPE_CHECKING:
    from lmnb.backends.remote.api_backend import ApiBackend

ROOM = 24  # tokens for the JSON around a value, which the program's max_tokens knows nothing of
_CHOICE_ROOM = 4096  # tokens besides a choice's own: a model that reasons counts its thoughts, and no user sets a limit


async def ask_for_value(
    backend: ApiBackend, prompt: ChatPrompt, params: SamplingParams, value: PlainValue, reply: ApiReply
) -> None:
    """Fill `reply` with the value's text, which comes in one piece. Stops are looked for in the text, not in the JSON.

    RemoteError for an answer that is cut, or is not what was asked for.
    """
    if params.return_logprob:
        raise ArgumentError(
            f"{backend.who} gives a value ({value.name}) by structured output, whose log-probabilities are not those "
            "of the text; leave return_logprob out"
        )
    whole, prefix = prompt.whole_turn()
    asked = replace(
        params,
        constraint=value.json_schema(prefix),
        max_new_tokens=params.max_new_tokens + ROOM,
        stop=(),
    )
    answer = ApiReply(lambda _: None)
    await backend.ask(whole, asked, answer)
    if answer.finish_reason == "length":
        raise RemoteError(f"the answer of {backend.who} was cut before its value was complete; raise max_tokens")
    text = value.text(answer.text)
    found = min((place, stop) for stop in (*params.stop, "") if (place := _find(text, stop)) is not None)
    reply.add(text[: found[0]])
    reply.matched = found[1] or None
    reply.finish_reason = "stop"
    reply.prompt_tokens, reply.cached_tokens = answer.prompt_tokens, answer.cached_tokens
    reply.completion_tokens = answer.completion_tokens
    how = str(answer.meta.pop("constraint", "json_schema"))
    reply.meta |= {**answer.meta, "constraint": how.replace("json_schema", value.name, 1)}


async def ask_for_choice(backend: ApiBackend, prompt: ChatPrompt, choices: Sequence[str]) -> Scores:
    """Have the API choose: no choice has a score."""
    started = time.monotonic()
    reply = ApiReply(lambda _: None)
    room = _CHOICE_ROOM + max(map(len, choices))
    params = SamplingParams(temperature=backend.choosing_temperature, max_new_tokens=room)
    if backend.capabilities.regex and backend.capabilities.continues_turn:  # no JSON is needed
        await backend.ask(prompt, replace(params, constraint=Constraint.of_choices(choices)), reply)
        if reply.text not in choices:
            raise RemoteError(f"{backend.who} was asked for one of the choices and answered {reply.text[:80]!r}")
    else:
        await ask_for_value(backend, prompt, params, one_of(choices), reply)
    backend.token_usage.add(reply.prompt_tokens, reply.completion_tokens or 0)
    return Scores(
        tuple(ChoiceScore(choice, ()) for choice in choices),
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        seconds=time.monotonic() - started,
        picked=list(choices).index(reply.text),
    )


def _find(text: str, stop: str) -> int | None:
    """Where `stop` is in `text`; the empty one is at its end."""
    place = text.find(stop) if stop else len(text)
    return None if place < 0 else place
