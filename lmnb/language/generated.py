"""What a generation has said, token by token, and the way back into it: what it takes to go on from any of its tokens.

A stream notes one `Generated` for each generation as it begins; pieces of the text are added as they come. Costs a few
numbers a token. Knows nothing of how a new branch is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from lmnb.backends.base import Context, Delta, ResumableContext
from lmnb.language.token_parts import units
from lmnb.runtime.request import TokenLogprob

if TYPE_CHECKING:
    from lmnb.language.branch import Branch
    from lmnb.language.model_steps import GenStep
    from lmnb.language.state import ProgramState
    from lmnb.language.stream import Stream


@dataclass(frozen=True)
class Begun:
    """What a generation begins with: tokens of an earlier one, and what stands in place of the next.

    `ids` are both, on a backend that goes on by tokens; on others `text` is both, and the prompt already has it.
    """

    num_kept: int
    ids: tuple[int, ...] = ()
    text: str = ""
    kept_text: str = ""
    logprobs: tuple[TokenLogprob | None, ...] = ()  # of the kept tokens, where they were asked for


class StreamPlace:
    """Where a stream stood when a generation began. On the loop only."""

    def __init__(self, stream: Stream) -> None:
        context = stream.context
        assert context is not None
        self.restore: Callable[[], Context]
        if stream.backend.capabilities.resumes:
            self.restore = cast(ResumableContext, context).checkpoint()
        else:
            self.restore = context.fork().fork
        self.num_chunks = len(stream.chunks)
        self.num_messages = len(stream.messages)
        self.role = stream.role
        self.role_parts = tuple(stream.role_parts)


class Generated:
    """One generation of a branch, `number` in the order of their beginnings, as far as it has come."""

    def __init__(self, step: GenStep, stream: Stream, number: int) -> None:
        self.step = step
        self.stream = stream
        self.branch: Branch = stream.branch
        self.number = number
        self.place = StreamPlace(stream)
        self.begun = step.begun
        self.ids: list[int] = []
        self.logprobs: dict[int, TokenLogprob] = {}  # by place, where they were asked for
        self._starts: list[int] = []  # characters of the text that were there when the token came
        self._pieces: list[str] = []
        self._length = 0

    @property
    def state(self) -> ProgramState:
        """The state that the generation was appended to."""
        assert self.step.state is not None
        return self.step.state

    @property
    def by_tokens(self) -> bool:
        """Whether the backend tells its tokens' ids, so that they can be kept as they are."""
        return self.stream.backend.capabilities.resumes

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def __len__(self) -> int:
        """Tokens so far; on backends that do not tell them, pieces as they came."""
        return len(self._starts)

    def told(self, delta: Delta) -> Delta:
        """A piece as it is told to views: one that was said before, with how it came about and what else was likely
        there then."""
        if delta.origin != "given" or self.begun is None:
            return delta
        place = len(self)
        known = self.begun.logprobs[place : place + delta.num_tokens]
        entries = tuple(entry for entry in known if entry is not None)
        kept = place < self.begun.num_kept
        return replace(delta, origin="kept" if kept else "given", logprobs=entries if kept else ())

    def take(self, delta: Delta) -> None:
        """The next piece."""
        for places in (self.ids, self._starts):
            del places[len(places) - min(delta.num_replaced, len(places)) :]
        first = len(self._starts)
        self.ids += delta.token_ids
        self._starts += [self._length] * (len(delta.token_ids) if delta.token_ids else max(delta.num_tokens, 0))
        for place, entry in enumerate(delta.logprobs, first):
            self.logprobs[place] = entry
        self._pieces.append(delta.text)
        self._length += len(delta.text)

    def kept_text(self, token: int) -> str:
        """The text before the piece that the token came with."""
        return self.text[: self._starts[token]] if token < len(self._starts) else self.text

    def kept_units(self, token: int) -> int:
        """Its length, as browsers count it."""
        return units(self.kept_text(token))

    def pieces(self) -> Iterator[str]:
        """The tokens as people read them."""
        if self.by_tokens:
            yield from map(self.stream.backend.token_text, self.ids)
            return
        ends: Sequence[int] = [*self._starts[1:], self._length]
        yield from (self.text[start:end] for start, end in zip(self._starts, ends, strict=True))
