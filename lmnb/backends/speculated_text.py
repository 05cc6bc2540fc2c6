"""What a model said beyond what was asked: text with its tokens, taken from the front piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmnb.backends.base import Delta, Generation
from lmnb.runtime.request import FinishReason, SamplingParams, TokenLogprob


@dataclass(frozen=True)
class Piece:
    """What one generation gets of it."""

    text: str = ""
    num_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason = "stop"
    matched: str | int | None = None


class SpeculatedText:
    """A text that shrinks from its front. `ended`: the model itself ended it there (it was not cut by a limit)."""

    def __init__(self, params: SamplingParams, deltas: Sequence[Delta], result: Generation) -> None:
        self._params = params
        told = "".join(delta.text for delta in deltas)
        rest = result.text[len(told) :] if result.text.startswith(told) else ""
        untold = max(result.completion_tokens - sum(delta.num_tokens for delta in deltas), 1)
        self._deltas = [*deltas, *([Delta(rest, untold)] if rest else [])]
        self.ended = result.finish_reason == "stop"
        self._matched = result.matched

    @property
    def text(self) -> str:
        """What is left."""
        return "".join(delta.text for delta in self._deltas)

    @property
    def num_tokens(self) -> int:
        """Tokens left, as far as the backend tells them apart."""
        return sum(delta.num_tokens for delta in self._deltas)

    def copy(self) -> SpeculatedText:
        """The same, to try something out on."""
        return self._with(self._deltas, self)

    def extended(self, more: SpeculatedText) -> SpeculatedText:
        """With what the model said after it."""
        return self._with([*self._deltas, *more._deltas], more)

    def serves(self, params: SamplingParams) -> bool:
        """Whether it was drawn as `params` want it. A seed names the draws of the call, not of a part of it."""
        return _drawing(params) == _drawing(self._params)

    def follow(self, text: str) -> bool:
        """Take `text` from the front, if it is there in full."""
        if not self.text.startswith(text):
            return False
        self._split(len(text))
        return True

    def take(self, stop: Sequence[str], max_tokens: int, *, whole: bool = False) -> Piece | None:
        """A generation's text: up to the earliest stop (which stays, for the program may say it next), at most
        `max_tokens` tokens. None if it is too short to tell; with `whole` nothing can follow, so that its end is
        the generation's end."""
        text = self.text
        limit = self._length_of(max_tokens)
        found = min(((text.index(item), item) for item in stop if item in text), default=None)
        if found is not None and found[0] <= limit:
            return self._piece(found[0], "stop", found[1])
        if self.num_tokens >= max_tokens:
            return self._piece(limit, "length", None)
        if self.ended:
            return self._piece(len(text), "stop", self._matched)
        return self._piece(len(text), "length", None) if whole else None

    def _with(self, deltas: Sequence[Delta], end: SpeculatedText) -> SpeculatedText:
        twin = SpeculatedText.__new__(SpeculatedText)
        twin._params = self._params
        twin._deltas = list(deltas)
        twin.ended = end.ended
        twin._matched = end._matched
        return twin

    def _length_of(self, num_tokens: int) -> int:
        """Characters of that many leading tokens."""
        count = length = 0
        for delta in self._deltas:
            count += delta.num_tokens
            if count > num_tokens:
                break
            length += len(delta.text)
        return length

    def _piece(self, length: int, reason: FinishReason, matched: str | int | None) -> Piece:
        taken = self._split(length)
        return Piece(
            "".join(delta.text for delta in taken),
            sum(delta.num_tokens for delta in taken),
            tuple(entry for delta in taken for entry in delta.logprobs),
            reason,
            matched,
        )

    def _split(self, length: int) -> list[Delta]:
        """Take that many characters from the front. A token that is cut counts where it begins."""
        taken: list[Delta] = []
        while length and self._deltas:
            delta = self._deltas.pop(0)
            if len(delta.text) > length:
                taken.append(replace(delta, text=delta.text[:length]))
                self._deltas.insert(0, Delta(delta.text[length:], 0))
                return taken
            length -= len(delta.text)
            taken.append(delta)
        return taken


def _drawing(params: SamplingParams) -> SamplingParams:
    """The parameters that decide how tokens are drawn."""
    return replace(params, max_new_tokens=0, stop=(), seed=None)
