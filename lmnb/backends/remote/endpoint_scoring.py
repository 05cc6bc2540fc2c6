"""`select` on a remote SGLang server: which of the log-probabilities it returns belong to each choice.

The server tokenizes prompt and choice together, so where they join a token may cover parts of both. All choices are
scored from the same place: behind the last token that lies in the prompt and is the same for every choice. So each
score covers the same text, and is conditioned on the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmnb.backends.remote.token_texts import TokenTexts
from lmnb.backends.well_formed import well_formed
from lmnb.runtime.request import TokenLogprob


@dataclass(frozen=True, slots=True)
class RemoteToken:
    """One scored token as the server told it."""

    logprob: float | None
    token_id: int
    text: str

    @classmethod
    def read(cls, entry: Sequence[Any]) -> RemoteToken:
        """From the wire's `[log-probability, id, text]`. TypeError, ValueError or LookupError if it is not that."""
        logprob = entry[0]
        if logprob is not None and (isinstance(logprob, bool) or not isinstance(logprob, (int, float))):
            raise TypeError(f"a log-probability is {logprob!r}")
        text = entry[2] if len(entry) > 2 and entry[2] is not None else ""
        return cls(logprob, int(entry[1]), well_formed(text))


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """`tokens`: those from the common place on; the first `num_head` also cover the prompt's end. `head_text` is
    what they cover of the choice."""

    tokens: tuple[RemoteToken, ...]
    num_head: int
    head_text: str

    @property
    def token_ids(self) -> list[int]:
        """The scored tokens' ids, to be scored again without the prompt."""
        return [token.token_id for token in self.tokens]

    def logprobs(self, values: Sequence[float | None], texts: TokenTexts) -> tuple[TokenLogprob, ...]:
        """One entry for each token of the choice, from one value for each token of `tokens`.

        The tokens that cover the prompt's end are one entry, with their sum: its text is the choice's part of them.
        """
        entries = []
        if self.num_head:
            known = [value for value in values[: self.num_head] if value is not None]
            last = self.tokens[self.num_head - 1]
            token_id = last.token_id if last.text == self.head_text else texts.number(self.head_text)
            entries.append(TokenLogprob(token_id, sum(known) if known else None))
        rest = zip(self.tokens[self.num_head :], values[self.num_head :], strict=True)
        return (*entries, *(TokenLogprob(token.token_id, value) for token, value in rest))


def attribute(
    rows: Sequence[Sequence[RemoteToken]], choices: Sequence[str], num_prompt: int
) -> list[ScoredChoice] | None:
    """`rows`: each choice's tokens, from the same place in the prompt on (`num_prompt` of them, if nothing joins).
    None if even the first token differs: then the rows begin too late."""
    tails = [_tail(row, choice, num_prompt) for row, choice in zip(rows, choices, strict=True)]
    stable = 0
    while all(_within(row, stable, tail) for row, tail in zip(rows, tails, strict=True)):
        if len({row[stable].token_id for row in rows}) > 1:
            break
        stable += 1
    if not stable and num_prompt and len(rows) > 1 and len({row[0].token_id for row in rows}) > 1:
        return None
    return [_scored(row, tail, stable) for row, tail in zip(rows, tails, strict=True)]


def _tail(row: Sequence[RemoteToken], choice: str, num_prompt: int) -> int:
    """How many characters of the row's text are the prompt's."""
    text = "".join(token.text for token in row)
    if text.endswith(choice):
        return len(text) - len(choice)
    # Some token is half a character, and its text is no help: then nothing is taken to be joined.
    return sum(len(token.text) for token in row[:num_prompt])


def _within(row: Sequence[RemoteToken], index: int, tail: int) -> bool:
    """Whether the token at `index` lies in the prompt's tail altogether."""
    return index < len(row) and sum(len(token.text) for token in row[: index + 1]) <= tail


def _scored(row: Sequence[RemoteToken], tail: int, stable: int) -> ScoredChoice:
    tokens = tuple(row[stable:])
    left = tail - sum(len(token.text) for token in row[:stable])  # of the prompt's text, to be covered by the head
    if left <= 0:
        return ScoredChoice(tokens, 0, "")
    covered = num_head = 0
    while covered < left and num_head < len(tokens):
        covered += len(tokens[num_head].text)
        num_head += 1
    if covered == left and num_head < len(tokens):  # nothing is joined: the choice's first token follows the tail's
        num_head += 1
        return ScoredChoice(tokens, num_head, tokens[num_head - 1].text)
    return ScoredChoice(tokens, num_head, "".join(token.text for token in tokens[:num_head])[left:])
