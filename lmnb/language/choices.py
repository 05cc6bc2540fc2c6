"""How `select` decides between scored choices: three methods, and the class that users derive their own from.

Knows numbers only; the scores come from a backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lmnb.errors import ArgumentError

Triple = list[Any]  # log-probability (or None), token id, text (or None)


@dataclass
class ChoicesDecision:
    """The chosen text, and what the state's `get_meta_info` tells about the choice."""

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)


class ChoicesSamplingMethod(ABC):
    """A rule that picks a choice. Derive from it and implement `__call__` with these keyword arguments."""

    @property
    def name(self) -> str:
        """What views call the method."""
        return type(self).__name__

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether `unconditional_token_logprobs` (the choices' tokens with no prompt before them) is needed."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Triple]],
        output_token_logprobs: list[list[Triple]],
        unconditional_token_logprobs: list[list[Triple]] | None = None,
    ) -> ChoicesDecision:
        """Decide. One entry per choice: the mean log-probability of its tokens; its tokens' triples; no output
        tokens; its tokens' triples without the prompt."""

    def scores(self, decision: ChoicesDecision) -> list[float]:
        """What the decision compared, one number a choice, for views."""
        return [float(score) for score in decision.meta_info.get("normalized_prompt_logprobs", ())]


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The choice with the highest mean log-probability per token; the first of equals."""

    @property
    def name(self) -> str:
        """The method's public name."""
        return "token_length_normalized"

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Triple]],
        output_token_logprobs: list[list[Triple]],
        unconditional_token_logprobs: list[list[Triple]] | None = None,
    ) -> ChoicesDecision:
        """Decide by the means."""
        return ChoicesDecision(
            choices[_argmax(normalized_prompt_logprobs)],
            {
                "normalized_prompt_logprobs": normalized_prompt_logprobs,
                "input_token_logprobs": input_token_logprobs,
                "output_token_logprobs": output_token_logprobs,
            },
        )


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Token by token, keep the choices whose token is the likeliest; the first of those that are left.

    A choice that has run out of tokens goes on with its own mean, so that short and long ones can be compared.
    """

    @property
    def name(self) -> str:
        """The method's public name."""
        return "greedy_token_selection"

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Triple]],
        output_token_logprobs: list[list[Triple]],
        unconditional_token_logprobs: list[list[Triple]] | None = None,
    ) -> ChoicesDecision:
        """Decide column by column."""
        matrix = _padded(input_token_logprobs, normalized_prompt_logprobs)
        return ChoicesDecision(
            choices[_greedy_path(matrix)[0]],
            {
                "normalized_prompt_logprobs": normalized_prompt_logprobs,
                "input_token_logprobs": input_token_logprobs,
                "output_token_logprobs": output_token_logprobs,
                "greedy_logprob_matrix": matrix,
            },
        )

    def scores(self, decision: ChoicesDecision) -> list[float]:
        """Each choice's log-probability in the last column in which it was compared."""
        matrix = decision.meta_info["greedy_logprob_matrix"]
        columns = _greedy_path(matrix)[1]
        return [float(row[column]) for row, column in zip(matrix, columns, strict=True)]


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The choice whose tokens gain most from the prompt: mean of conditional minus unconditional log-probability.

    A leading token without an unconditional log-probability counts as 0.
    """

    @property
    def name(self) -> str:
        """The method's public name."""
        return "unconditional_likelihood_normalized"

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """It compares with them."""
        return True

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Triple]],
        output_token_logprobs: list[list[Triple]],
        unconditional_token_logprobs: list[list[Triple]] | None = None,
    ) -> ChoicesDecision:
        """Decide by the gains."""
        if unconditional_token_logprobs is None:
            raise ArgumentError(
                "unconditional_likelihood_normalized needs unconditional_token_logprobs; this backend gave none"
            )
        gains = [
            _mean([(a[0] or 0.0) - (b[0] or 0.0) for a, b in zip(with_prompt, without, strict=True)])
            for with_prompt, without in zip(input_token_logprobs, unconditional_token_logprobs, strict=True)
        ]
        return ChoicesDecision(
            choices[_argmax(gains)],
            {
                "normalized_prompt_logprobs": normalized_prompt_logprobs,
                "input_token_logprobs": input_token_logprobs,
                "output_token_logprobs": output_token_logprobs,
                "unconditional_token_logprobs": unconditional_token_logprobs,
                "normalized_unconditional_prompt_logprobs": gains,
            },
        )

    def scores(self, decision: ChoicesDecision) -> list[float]:
        """The gains."""
        return [float(gain) for gain in decision.meta_info["normalized_unconditional_prompt_logprobs"]]


class ChosenByModel(TokenLengthNormalized):
    """Where a backend can only let the model choose: the choice whose tokens it went along with furthest.

    Programs do not name it; it stands in for their method, and the decision's meta data says so.
    """

    @property
    def name(self) -> str:
        """What views call it."""
        return "chosen_by_model"

    def decide(self, choices: list[str], num_chosen: list[int]) -> ChoicesDecision:
        """Decide by the counts, one a choice."""
        best = max(range(len(choices)), key=num_chosen.__getitem__)
        return ChoicesDecision(choices[best], {"scores": num_chosen, "choices_method": self.name})

    def scores(self, decision: ChoicesDecision) -> list[float]:
        """The counts."""
        return [float(count) for count in decision.meta_info["scores"]]


class ChosenByApi(TokenLengthNormalized):
    """Where an API chooses by its structured output, and tells no scores.

    Programs do not name it; it stands in for their method, and the decision's meta data says so.
    """

    @property
    def name(self) -> str:
        """What views call it."""
        return "chosen_by_api"

    def decide(self, choices: list[str], picked: int) -> ChoicesDecision:
        """What the API has decided."""
        return ChoicesDecision(choices[picked], {"scores": None, "choices_method": self.name})

    def scores(self, decision: ChoicesDecision) -> list[float]:
        """There are none."""
        return []


def mean_logprob(triples: Sequence[Triple]) -> float:
    """Mean of the log-probabilities there are; 0 where there is none to average."""
    return _mean([triple[0] for triple in triples if triple[0] is not None])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)  # max keeps the first of equals


def _padded(rows: list[list[Triple]], means: list[float]) -> list[list[float]]:
    width = max(1, *(len(row) for row in rows))
    known = [
        [float(triple[0]) if triple[0] is not None else mean for triple in row]
        for row, mean in zip(rows, means, strict=True)
    ]
    return [row + [mean] * (width - len(row)) for row, mean in zip(known, means, strict=True)]


def _greedy_path(matrix: list[list[float]]) -> tuple[int, list[int]]:
    """The winning row, and for each row the last column in which it was compared."""
    left = list(range(len(matrix)))
    columns = [0] * len(matrix)
    for column in range(len(matrix[0])):
        best = max(matrix[row][column] for row in left)
        for row in left:
            columns[row] = column
        left = [row for row in left if matrix[row][column] == best]
        if len(left) == 1:
            break
    return left[0], columns


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
chosen_by_model = ChosenByModel()
chosen_by_api = ChosenByApi()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
