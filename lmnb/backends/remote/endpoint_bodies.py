"""Bodies of SGLang's `/generate`, field by field as its released frontend writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmnb.backends.images import Picture
from lmnb.runtime.request import SamplingParams


def generate_body(
    text: str, images: Sequence[Picture], params: SamplingParams, rid: str, logprob_start: int | None
) -> dict[str, Any]:
    """The body of a streamed `/generate`, its fields in the order in which SGLang's own frontend writes them."""
    constraint = params.constraint
    sampling: dict[str, Any] = {
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "max_new_tokens": params.max_new_tokens,
        "min_new_tokens": params.min_new_tokens,
        "n": 1,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        **({"stop_regex": list(params.stop_regex)} if params.stop_regex else {}),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "ignore_eos": params.ignore_eos,
        "regex": constraint.source if constraint is not None and constraint.kind == "regex" else None,
        "json_schema": constraint.source if constraint is not None and constraint.kind == "json_schema" else None,
    }
    if constraint is not None and constraint.kind == "ebnf":
        sampling["ebnf"] = constraint.source
    if params.repetition_penalty != 1.0:
        sampling["repetition_penalty"] = params.repetition_penalty
    if params.seed is not None:
        sampling["sampling_seed"] = params.seed
    body: dict[str, Any] = {"text": text, "sampling_params": sampling}
    if params.return_logprob or logprob_start is not None:
        body["return_logprob"] = True
        if logprob_start is not None:
            body["logprob_start_len"] = logprob_start
        if params.top_logprobs_num:
            body["top_logprobs_num"] = params.top_logprobs_num
        body["return_text_in_logprobs"] = True
    return {**body, **image_data(images), "stream": True, "rid": rid}


def commit_body(text: str, images: Sequence[Picture]) -> dict[str, Any]:
    """The body of a `/generate` of no tokens, which leaves the prompt in the server's cache."""
    return {"text": text, "sampling_params": {"max_new_tokens": 0}, **image_data(images)}


def image_data(images: Sequence[Picture], batch: int | None = None) -> dict[str, Any]:
    """The field for a prompt's images: one as it is, several as a list; the same for each of a batch of prompts.

    An only image need not be repeated, and is not: servers give it to every prompt of the batch.
    """
    if not images:
        return {}
    files = [image.base64 for image in images]
    if len(files) == 1:
        return {"image_data": files[0]}
    return {"image_data": files if batch is None else [files] * batch}


def scoring_body(prompts: dict[str, Any], start: int, images: Sequence[Picture] = ()) -> dict[str, Any]:
    """The body of a batched `/generate` that only scores `prompts`, from their token `start` on."""
    batch = len(next(iter(prompts.values())))
    return {
        **prompts,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "logprob_start_len": start,
        **image_data(images, batch),
    }
