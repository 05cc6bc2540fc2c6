"""What goes into the engine and what comes out: requests, token events, completions. No torch here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from lmnb.errors import ArgumentError
from lmnb.runtime.argument_checks import check_text, flag, number, shown, texts, token_ids, whole_number, whole_numbers
from lmnb.runtime.prompt_layout import PLAIN, PromptLayout

FinishReason = Literal["stop", "length", "cancelled", "error"]


# How a token came about: chosen freely, chosen under a grammar's mask, added because the grammar forced it, or given
# with the request; of the last, views are told which were generated before ("kept").
Origin = Literal["free", "masked", "forced", "given", "kept"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the generated text must match: a regex, a JSON schema as JSON text, or a grammar (Lark's or GBNF's form).

    `loose`: JSON may have white space between its parts. `engine`: the library that must enforce it, by name.
    ArgumentError for a source that is no text.
    """

    kind: Literal["regex", "json_schema", "ebnf"]
    source: str
    loose: bool = False
    engine: Literal["auto", "llguidance", "xgrammar"] = "auto"

    def __post_init__(self) -> None:
        check_text(self.kind, self.source)

    @classmethod
    def of_choices(cls, choices: Iterable[str]) -> Constraint:
        """One of several texts. ArgumentError for one that is none."""
        choices = tuple(choices)
        for choice in choices:
            check_text("each choice", choice)
        return cls("regex", "|".join(re.escape(choice) for choice in choices))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends.

    `temperature=0` is greedy. `top_k=-1` and `top_p=1`, `min_p=0` leave the distribution whole.
    Penalties count generated tokens only. `seed` makes the request's draws its own: the same seed
    gives the same draws whatever else is in the batch.
    `stop` strings, and the first match of a `stop_regex`, are cut from the text, as is the stop token; `ignore_eos`
    ignores the model's end tokens and `stop_token_ids`, never stop strings. `min_new_tokens` bans end tokens until
    then. `suppress_token_ids` are never sampled (end tokens are exempt).
    `jump_forward`: whether text that the constraint forces is added at once, or takes a step for each of its tokens
    (which are the same); None leaves it to the engine.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    suppress_token_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    jump_forward: bool | None = None
    return_logprob: bool = False
    top_logprobs_num: int = 0

    def __post_init__(self) -> None:
        """Values of another type that mean the same (numpy's, whole floats) become plain ones. ArgumentError for
        the rest."""
        self._normalise()

        def require(ok: bool, what: str) -> None:
            if not ok:
                raise ArgumentError(what)

        require(self.max_new_tokens >= 0, f"max_tokens must be at least 0, not {shown(self.max_new_tokens)}")
        require(
            0 <= self.min_new_tokens <= self.max_new_tokens,
            f"min_tokens must lie between 0 and max_tokens ({shown(self.max_new_tokens)}), "
            f"not {shown(self.min_new_tokens)}",
        )
        require(0 <= self.temperature <= 1e6, f"temperature must lie in [0, 1e6], not {self.temperature}")
        require(0 < self.top_p <= 1, f"top_p must lie in (0, 1], not {self.top_p}")
        require(self.top_k == -1 or self.top_k >= 1, f"top_k must be -1 (off) or at least 1, not {shown(self.top_k)}")
        require(0 <= self.min_p <= 1, f"min_p must lie in [0, 1], not {self.min_p}")
        require(
            -2 <= self.frequency_penalty <= 2, f"frequency_penalty must lie in [-2, 2], not {self.frequency_penalty}"
        )
        require(-2 <= self.presence_penalty <= 2, f"presence_penalty must lie in [-2, 2], not {self.presence_penalty}")
        # Logits are divided by it in float32: what lies outside would make them infinite, or all the same.
        require(
            1e-6 <= self.repetition_penalty <= 1e6,
            f"repetition_penalty must lie in [1e-6, 1e6] (1 is off), not {self.repetition_penalty}",
        )
        require(
            0 <= self.top_logprobs_num <= 100,
            f"top_logprobs_num must lie in [0, 100], not {shown(self.top_logprobs_num)}",
        )
        if self.stop_regex:
            from lmnb.runtime.stop_regex import check_stop_regexes

            check_stop_regexes(self.stop_regex)

    def _normalise(self) -> None:
        for name, read in _READERS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, read(_WRITTEN.get(name, name), value))
        if not isinstance(self.constraint, Constraint | None):
            raise ArgumentError(f"constraint must be a Constraint or None, not {shown(self.constraint)}")


_READERS: dict[str, Callable[[str, Any], object]] = {
    "max_new_tokens": whole_number,
    "min_new_tokens": whole_number,
    "temperature": number,
    "top_p": number,
    "top_k": whole_number,
    "min_p": number,
    "frequency_penalty": number,
    "presence_penalty": number,
    "repetition_penalty": number,
    "seed": whole_number,
    "stop": texts,
    "stop_regex": texts,
    "stop_token_ids": token_ids,
    "ignore_eos": flag,
    "suppress_token_ids": token_ids,
    "jump_forward": flag,
    "return_logprob": flag,
    "top_logprobs_num": whole_number,
}
_OPTIONAL = frozenset({"seed", "jump_forward"})
_WRITTEN = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}  # as programs write them


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One piece of work for the engine.

    `input_ids`: the whole prompt, at least one token. `logprob_start`: if set, the completion carries
    log-probabilities of the prompt's own tokens from that index on (so the cache is matched below it only).
    `owner` is opaque: it comes back on cache events made for this request. `layout`: what each part of the prompt
    sees, and where it stands, if that is not simply all that is before it.
    `begun_ids`: generated tokens that are there already. The request goes on behind them as the one that had generated
    them would: they count for `max_new_tokens`, stops, penalties, the constraint and the number of the next draw, and
    events tell of them, with the origin "given". The completion has them too.
    """

    input_ids: tuple[int, ...]
    begun_ids: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprob_start: int | None = None
    owner: object = None
    layout: PromptLayout = PLAIN

    def __post_init__(self) -> None:
        """As for `SamplingParams`."""
        for name in ("input_ids", "begun_ids"):
            object.__setattr__(self, name, whole_numbers(name, getattr(self, name)))
        if self.logprob_start is not None:
            object.__setattr__(self, "logprob_start", whole_number("logprob_start", self.logprob_start))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural log, of the model's raw distribution) of one token, with the likeliest others.

    `masked`: the same among the tokens that a constraint allowed there; 0 for a token that it forced; None without a
    constraint, and for a token that holds both sampled and forced text, as no mask was made for it.
    """

    token_id: int
    logprob: float | None  # None for a prompt's very first token, which nothing predicts
    top: tuple[tuple[int, float], ...] = ()
    masked: float | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens a request has just produced. `text` is the newly readable text: whole characters only,
    never a part of a possible stop string; often shorter or later than the tokens themselves."""

    request_id: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    origin: Origin = "free"
    num_replaced: int = 0  # tokens told of before that `token_ids` stand in for (only their text stays as it is)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """All that a finished request produced.

    `token_ids` holds every generated token, the stop token included; `text` is what may be shown (stop
    string and stop token cut). The concatenated `text` of a request's `TokenEvent`s equals `text`.
    `num_kept_tokens`: how many leading tokens of `token_ids` decode to a prefix of `text` exactly.
    """

    request_id: int
    token_ids: tuple[int, ...]
    text: str
    num_kept_tokens: int
    finish_reason: FinishReason
    matched: str | int | None  # the stop string or token that ended it
    prompt_tokens: int
    cached_tokens: int  # of prompt and begun tokens, found in the radix cache when the request was first scheduled
    logprobs: tuple[TokenLogprob, ...] = ()
    input_logprobs: tuple[TokenLogprob, ...] = ()
    queue_seconds: float = 0.0
    first_token_seconds: float | None = None  # from submit to the first token
    total_seconds: float = 0.0
    num_preemptions: int = 0
    was_scheduled: bool = True  # False: the model read no prompt, as all of the output was forced, or it ended before
    num_forced_tokens: int = 0  # of `token_ids`: nothing of their text was sampled, as the grammar forced it
    num_steps: int = 0  # sampled tokens: one step each
    grammar_engine: str | None = None
    is_cut: bool = False  # a stop string or token ended the text before it was all that its constraint asks for
    num_begun_tokens: int = 0  # of `token_ids`, given with the request; they have no log-probabilities here

    @property
    def completion_tokens(self) -> int:
        """Tokens of the output, begun ones and the stop token included."""
        return len(self.token_ids)

    @classmethod
    def nothing(cls, request_id: int, prompt_tokens: int) -> Completion:
        """What a request has produced that failed before it was looked at."""
        return cls(
            request_id=request_id,
            token_ids=(),
            text="",
            num_kept_tokens=0,
            finish_reason="error",
            matched=None,
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            was_scheduled=False,
        )


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event of a request. `error` is set when `completion.finish_reason` is "error"."""

    completion: Completion
    error: BaseException | None = None


Event = TokenEvent | FinishEvent
