"""How `select` scores choices on the local engine: which tokens stand for a choice, and their log-probabilities.

It knows nothing of the methods that compare the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmnb.backends.prefix import common_prefix_length
from lmnb.backends.token_codec import TokenCodec
from lmnb.backends.token_stream import TokenStream
from lmnb.errors import ArgumentError
from lmnb.runtime.request import Completion, TokenLogprob


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """One choice after the prompt, as tokens.

    `ids`: prompt and choice as the tokenizer writes them together. Log-probabilities are wanted from index
    `start` on. The first `num_head` of these tokens also cover the end of the prompt's text; `head_ids` are
    the tokens of what they cover of the choice. The other tokens belong to the choice alone.
    """

    ids: tuple[int, ...]
    start: int
    num_head: int
    head_ids: tuple[int, ...]

    @property
    def choice_ids(self) -> tuple[int, ...]:
        """Token ids that decode to exactly the choice's text."""
        return self.head_ids + self.ids[self.start + self.num_head :]

    def logprobs(self, completion: Completion) -> tuple[TokenLogprob, ...]:
        """One entry per token of `choice_ids`."""
        scored = completion.input_logprobs
        assert len(scored) == len(self.ids) - self.start
        known = [entry.logprob for entry in scored[: self.num_head] if entry.logprob is not None]
        head = sum(known) if known else None
        return (*(TokenLogprob(token_id, head) for token_id in self.head_ids), *scored[self.num_head :])


def plan_choices(
    stream: TokenStream, choices: Sequence[str], codec: TokenCodec, *, trusted: bool, turn_start: bool = False
) -> list[ChoicePlan]:
    """Tokenize each choice together with the prompt, and say which tokens to score.

    Where the tokenizer joins the prompt's end with a choice (`"Answer: "` and `"yes"` give `" yes"`), all
    choices are scored from the same place: behind the last token that is the same for the prompt alone and for
    the prompt with each choice (token healing). So every score is conditioned on the same tokens and covers
    the same text, the prompt's tail and the choice. The log-probability of the tokens that cover the tail is
    the tail's plus the first piece's, and goes to the choice's first token; if a joined token's part in the
    choice is not one token by itself, each of that part's tokens carries it, so that means stay comparable.

    At `turn_start`, right behind a template's mark, a model has learned to write no space first. So a choice with
    leading spaces is scored without them, and ranks as it does without; its first token's place is taken by the
    tokens of that text with the spaces.
    """
    if not choices:
        raise ArgumentError("select needs at least one choice")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise ArgumentError(f"choices must be non-empty text, not {choice!r}")
    prompt = stream.ids
    leads = [
        choice[: len(choice) - len(choice.lstrip(" "))] if turn_start and choice.strip() else "" for choice in choices
    ]
    joined = []
    for choice, lead in zip(choices, leads, strict=True):
        branch = stream.fork()
        branch.append(choice[len(lead) :], trusted=trusted)
        joined.append(branch.ids)
    stable = common_prefix_length([prompt, *joined])
    tail = len(codec.bytes_of(prompt[stable:]))
    return [_plan(ids, stable, tail, codec, lead) for ids, lead in zip(joined, leads, strict=True)]


def _plan(ids: tuple[int, ...], start: int, tail: int, codec: TokenCodec, lead: str) -> ChoicePlan:
    """`tail`: bytes of the prompt's text that lie at or past token `start`. `lead`: spaces before the choice that are
    not scored."""
    if not tail and not lead:
        return ChoicePlan(ids, start, 0, ())
    num_head = 0
    covered = 0
    while covered < tail:
        covered += len(codec.token_bytes(ids[start + num_head]))
        num_head += 1
    if covered == tail:  # no token is joined: the choice's first token follows the tail's
        num_head += 1
        if not lead:
            return ChoicePlan(ids, start, num_head, ids[start + num_head - 1 : start + num_head])
    while True:
        part = codec.bytes_of(ids[start : start + num_head])[tail:]
        try:
            head_ids = codec.encode_inside(lead + part.decode("utf-8"))
            break
        except UnicodeDecodeError:  # the joined token ends within a character: take the next one with it
            if start + num_head == len(ids):
                head_ids = [ids[-1]]
                break
            num_head += 1
    return ChoicePlan(ids, start, num_head, tuple(head_ids))
