"""What `get_meta_info` tells of a generation, with SGLang's keys."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmnb.backends.base import Backend, Generation, Scores
from lmnb.language.defaults import Defaults
from lmnb.runtime.request import SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from lmnb.language.stream import Stream


def triples(logprobs: Sequence[TokenLogprob], backend: Backend, *, with_text: bool = True) -> list[list[Any]]:
    """`[log-probability, token id, text or None]` for each token."""
    return [
        [item.logprob, item.token_id, backend.token_text(item.token_id) if with_text else None] for item in logprobs
    ]


def generation_meta(
    generation: Generation, params: SamplingParams, merged: Defaults, stream: Stream, seconds: float
) -> dict[str, Any]:
    """The meta data of a finished generation. `e2e_latency` and `first_token_seconds` are in seconds."""
    reason: dict[str, Any] = {"type": generation.finish_reason}
    if generation.finish_reason == "stop":
        reason["matched"] = generation.matched
    elif generation.finish_reason == "length":
        reason["length"] = params.max_new_tokens
    meta: dict[str, Any] = {
        "id": secrets.token_hex(8),
        "finish_reason": reason,
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.completion_tokens,
        "cached_tokens": generation.cached_tokens,
        "e2e_latency": generation.total_seconds or seconds,
        "first_token_seconds": generation.first_token_seconds,
    }
    if params.return_logprob:
        with_text = merged.return_text_in_logprobs
        meta["input_token_logprobs"] = triples(generation.input_logprobs, stream.backend, with_text=with_text)
        meta["output_token_logprobs"] = triples(generation.logprobs, stream.backend, with_text=with_text)
        if params.top_logprobs_num:
            meta["input_top_logprobs"] = _tops(generation.input_logprobs, stream.backend, with_text)
            meta["output_top_logprobs"] = _tops(generation.logprobs, stream.backend, with_text)
    return {**meta, **generation.meta}


def score_meta(scores: Scores, seconds: float) -> dict[str, Any]:
    """What a select's choices cost to score; the method's own meta data comes on top."""
    return {
        "prompt_tokens": scores.prompt_tokens,
        "completion_tokens": 0,
        "cached_tokens": scores.cached_tokens,
        "e2e_latency": scores.seconds or seconds,
    }


def _tops(logprobs: Sequence[TokenLogprob], backend: Backend, with_text: bool) -> list[list[list[Any]]]:
    return [
        [[value, token, backend.token_text(token) if with_text else None] for token, value in item.top]
        for item in logprobs
    ]
