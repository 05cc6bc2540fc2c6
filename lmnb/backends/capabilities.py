"""What a backend declares that it can do, and the check that turns everything else into an error.

Nothing that a program asks for is dropped in silence: a parameter either reaches the model or is refused by name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from lmnb.backends.plain_values import plain_value
from lmnb.errors import ArgumentError
from lmnb.runtime.request import SamplingParams

# Parameters that not every API has, with the values that ask for nothing.
_NEUTRAL: dict[str, Any] = {
    "min_new_tokens": 0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "stop": (),
    "stop_regex": (),
    "stop_token_ids": (),
    "ignore_eos": False,
}
_WRITTEN = {"min_new_tokens": "min_tokens"}  # as programs write them
ALL_SAMPLING = frozenset(_NEUTRAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do. Texts say how; an empty one means that it cannot, and refuses.

    `select`: "scored" compares log-probabilities of whole choices; "guided" lets the model choose token by token;
    "structured" lets it choose by the API's structured output.
    `plain_values`: how `dtype=` and choices of texts are enforced where other regexes are not.
    `continues_turn`: an assistant's turn may begin with the program's own text, or hold several generations.
    `images`: contexts take images (`SeeingContext`); whether the model makes sense of them is its own affair.
    `data_is_text`: special tokens in a role's content stay text; elsewhere the server takes them for what they say.
    `speculation`: `num_api_spec_tokens` saves calls here (a local engine reuses its cache instead).
    `grammar_options`: JSON may be loose, and a grammar library may be named.
    `token_lens`: contexts can tell the tokens of their prompt (`TokenContext`). `concatenates_caches`: they can join
    branches by their caches, and move a branch's positions (`ConcatenatingContext`). `resumes`: they can go on from any
    token of what was generated (`ResumableContext`).
    `sampling`: the parameters that reach the model, besides `temperature` and `max_tokens`.
    """

    logprobs: str = ""
    select: Literal["scored", "guided", "structured", ""] = ""
    regex: str = ""
    plain_values: str = ""
    json_schema: str = ""
    ebnf: str = ""
    grammar_options: bool = False
    cancel: str = ""
    images: bool = False
    continues_turn: bool = False
    data_is_text: bool = False
    speculation: bool = False
    token_lens: bool = False
    concatenates_caches: bool = False
    resumes: bool = False
    sampling: frozenset[str] = frozenset()

    def as_dict(self) -> dict[str, Any]:
        """For `get_server_info`: plain values."""
        return {**asdict(self), "sampling": sorted(self.sampling)}

    def __str__(self) -> str:
        """One line for people."""
        said = [f"{name}: {value}" for name, value in self.as_dict().items() if value and isinstance(value, str)]
        said += [name for name, value in self.as_dict().items() if value is True]
        refused = [name for name, value in self.as_dict().items() if not value and name != "sampling"]
        missing = [_WRITTEN.get(name, name) for name in sorted(ALL_SAMPLING - self.sampling)]
        return "; ".join(said) + (f"; refuses {', '.join([*refused, *missing])}" if refused or missing else "")

    def check(self, params: SamplingParams, backend: str) -> None:
        """ArgumentError for what `params` ask for and the backend cannot do."""
        for name, neutral in _NEUTRAL.items():
            if name not in self.sampling and getattr(params, name) != neutral:
                raise ArgumentError(f"{backend} has no {_WRITTEN.get(name, name)}; leave it out")
        if params.return_logprob and not self.logprobs:
            raise ArgumentError(f"{backend} gives no log-probabilities; leave return_logprob out")
        constraint = params.constraint
        value = plain_value(constraint)
        if constraint is not None and not getattr(self, constraint.kind) and not (value and self.plain_values):
            others = "use json_schema, or" if constraint.kind == "regex" and self.json_schema else "leave it out, or"
            what = f"a {constraint.kind.replace('_', ' ')}" + (f" ({_dtype(value.name)} is one)" if value else "")
            raise ArgumentError(f"{backend} cannot enforce {what}; {others} run on lmnb.Runtime or an SGLang server")

        if constraint is not None and not self.grammar_options and (constraint.loose or constraint.engine != "auto"):
            raise ArgumentError(f"{backend} enforces constraints its own way; leave json_style and grammar_backend out")

    def refuse_images(self, backend: Any) -> ArgumentError:
        """The error for an image that cannot be taken."""
        backend = getattr(backend, "inner", backend)
        return ArgumentError(
            f"{backend.name} on {type(backend).__name__} reads no images or videos; describe them in text, or run on a "
            "model that sees: RuntimeEndpoint(url) of an SGLang server, OpenAI, Anthropic, VertexAI or LiteLLM"
        )

    def refuse_select(self, backend: str) -> ArgumentError:
        """The error for a `select` that cannot be made."""
        return ArgumentError(
            f"{backend} can neither score nor bias whole choices, so it has no select; ask in a prompt and check the "
            "answer, use a json_schema with an enum, or run on lmnb.Runtime, an SGLang server or a completion model"
        )


def _dtype(name: str) -> str:
    return "a choice of texts" if name == "choices" else f"dtype={name}"
