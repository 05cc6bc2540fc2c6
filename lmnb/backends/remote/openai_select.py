"""`select` on completion models: by log-probabilities of an echoed prompt, or by letting the model choose.

OpenAI's own completion models no longer score a prompt, but can be kept to some tokens: then the model chooses, one
token at a time, among what the choices go on with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lmnb.backends.base import ChoiceScore, Scores
from lmnb.backends.remote.endpoint_scoring import RemoteToken, attribute
from lmnb.backends.remote.openai_calls import as_json, complete_once
from lmnb.errors import ArgumentError

if TYPE_CHECKING:
    from lmnb.backends.remote.api_backend import ApiBackend

BIAS = 100  # the API's largest: no other token is chosen


class Encoding(Protocol):
    """What `choose` needs of a tokenizer; tiktoken's encodings have it."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """The text of token ids."""
        ...


async def choose(client: Any, backend: ApiBackend, encoding: Encoding, prompt: str, choices: Sequence[str]) -> Scores:
    """Let the model choose. Where a choice is complete and another goes on from it, the model is asked without a
    bias whether it goes on, so that both can be reached. The winner's end counts as one token more."""
    started = time.monotonic()
    ids = [encoding.encode(choice) for choice in choices]
    prompt_ids = encoding.encode(prompt)
    left = list(range(len(choices)))
    said: list[int] = []
    counts = [0] * len(choices)
    tokens = cached = 0
    while len(left) > 1:
        nexts = sorted({ids[i][len(said)] for i in left if len(ids[i]) > len(said)})
        ended = [i for i in left if len(ids[i]) == len(said)]
        if not nexts:  # choices that are written alike
            break
        if len(nexts) == 1 and not ended:
            said.append(nexts[0])
        else:
            bias = {} if ended else {"logit_bias": {str(token): BIAS for token in nexts}}
            answer = await complete_once(client, backend, prompt=prompt_ids + said, max_tokens=1, temperature=0, **bias)
            tokens += answer.usage.prompt_tokens
            text = answer.choices[0].text
            chosen = [token for token in nexts if encoding.decode([token]) == text]
            if not chosen and not ended:
                raise ArgumentError(f"the model said {text!r}, which begins none of the choices; it ignores logit_bias")
            if not chosen:
                left = ended
                break
            said.append(chosen[0])
        left = [i for i in left if ids[i][: len(said)] == said]
        for i in left:
            counts[i] = len(said)
    winner = left[0]
    counts[winner] = len(ids[winner]) + 1
    scores = tuple(ChoiceScore(choice, (), (), count) for choice, count in zip(choices, counts, strict=True))
    return Scores(scores, prompt_tokens=tokens, cached_tokens=cached, seconds=time.monotonic() - started)


async def score_by_echo(
    client: Any, backend: ApiBackend, prompt: str, choices: Sequence[str], *, unconditional: bool
) -> Scores:
    """Score by a completion of no tokens that echoes the prompt with its log-probabilities."""
    started = time.monotonic()
    texts = backend.token_texts
    answer = await _echo(client, backend, [prompt + choice for choice in choices])
    with backend.tell.reading(lambda: as_json(answer)):
        rows = [_row(choice.logprobs, backend) for choice in answer.choices]
        num_prompt = sum(offset < len(prompt) for offset in answer.choices[0].logprobs.text_offset)
        scored = attribute(rows, choices, num_prompt)
    if scored is None:
        raise ArgumentError("the server tokenizes the prompt differently for each choice; end it at a word")
    found = [one.logprobs([token.logprob for token in one.tokens], texts) for one in scored]
    alone: list[Any] = [()] * len(choices)
    usages = [answer.usage]
    if unconditional:
        without = await _echo(client, backend, list(choices))
        usages.append(without.usage)
        alone = [
            tuple(one)
            for one in _aligned([_row(choice.logprobs, backend) for choice in without.choices], found, backend)
        ]
    return Scores(
        tuple(ChoiceScore(*each) for each in zip(choices, found, alone, strict=True)),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        seconds=time.monotonic() - started,
    )


async def _echo(client: Any, backend: ApiBackend, prompts: list[str]) -> Any:
    answer = await complete_once(client, backend, prompt=prompts, max_tokens=0, temperature=0, echo=True, logprobs=0)
    if len(answer.choices) != len(prompts) or any(choice.logprobs is None for choice in answer.choices):
        raise ArgumentError(f"the server of {backend.name} does not score an echoed prompt, so it has no select")
    return answer


def _row(logprobs: Any, backend: ApiBackend) -> list[RemoteToken]:
    pairs = zip(logprobs.tokens, logprobs.token_logprobs, strict=True)
    return [RemoteToken(value, backend.token_texts.number(text), text) for text, value in pairs]


def _aligned(rows: list[list[RemoteToken]], found: Sequence[Any], backend: ApiBackend) -> Any:
    """The choices' own rows, if they are of the same tokens as `found`."""
    for row, scored in zip(rows, found, strict=True):
        if [token.text for token in row] != [backend.token_text(item.token_id) for item in scored]:
            raise ArgumentError(
                "the server tokenizes a choice differently without the prompt, so it has no unconditional score; "
                "use another choices_method"
            )
        yield [type(item)(item.token_id, token.logprob) for token, item in zip(row, scored, strict=True)]
