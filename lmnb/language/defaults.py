"""A program's sampling defaults, and how they merge with what one `gen` asks for. Knows nothing of execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lmnb.errors import ProgramError
from lmnb.language import arguments
from lmnb.language.expressions import Gen
from lmnb.runtime.request import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Sampling for every `gen` of a program that does not say otherwise.

    From `seed` each generation of a call gets a seed of its own (see `seeds.py`), so that branches differ.
    """

    max_new_tokens: int = 128
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    seed: int | None = None
    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False

    def updated(self, options: Mapping[str, Any]) -> Defaults:
        """With `options` in place of what they name. None leaves a default; an unknown name is a ProgramError,
        a value of the wrong kind an ArgumentError."""
        unknown = [name for name in options if name not in DEFAULT_NAMES]
        if unknown:
            raise ProgramError(
                f"{unknown[0]!r} is not a sampling default; a program has: {', '.join(sorted(DEFAULT_NAMES))}"
            )
        given = {name: value for name, value in options.items() if value is not None}
        return replace(self, **arguments.sampling(given))

    def merged(self, node: Gen) -> Defaults:
        """With what `node` asks for."""
        return self.updated(
            {name: value for name in DEFAULT_NAMES if (value := getattr(node.options, name)) is not None}
        )

    def params(self, node: Gen, template_stop: tuple[str, ...] = ()) -> SamplingParams:
        """The parameters of one `gen`; the chat template's stop strings come last. ArgumentError if out of range."""
        merged = self.merged(node)
        arguments.num_samples(merged.n)
        stop = merged.stop + node.extra_stop
        return SamplingParams(
            max_new_tokens=merged.max_new_tokens,
            min_new_tokens=node.options.min_new_tokens or 0,
            temperature=merged.temperature,
            top_p=merged.top_p,
            top_k=merged.top_k,
            min_p=merged.min_p,
            frequency_penalty=merged.frequency_penalty,
            presence_penalty=merged.presence_penalty,
            repetition_penalty=merged.repetition_penalty,
            seed=merged.seed,
            stop=stop + tuple(item for item in template_stop if item not in stop),
            stop_regex=merged.stop_regex,
            stop_token_ids=merged.stop_token_ids,
            ignore_eos=merged.ignore_eos,
            constraint=node.constraint,
            jump_forward=node.options.jump_forward,
            return_logprob=merged.return_logprob,
            top_logprobs_num=merged.top_logprobs_num,
        )


DEFAULT_NAMES = frozenset(field.name for field in fields(Defaults))
