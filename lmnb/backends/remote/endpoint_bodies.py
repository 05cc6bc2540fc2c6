"""Bodies of SGLang's `/generate`, field by field as its released frontend writes them."""

from __future__ import annotations

from typing import Any

from lmnb.runtime.request import SamplingParams


def generate_body(text: str, params: SamplingParams, rid: str, logprob_start: int | None) -> dict[str, Any]:
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
    return {**body, "stream": True, "rid": rid}


def scoring_body(prompts: dict[str, Any], start: int) -> dict[str, Any]:
    """The body of a batched `/generate` that only scores `prompts`, from their token `start` on."""
    return {
        **prompts,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "logprob_start_len": start,
    }
