"""What a scripted backend is to say, and the calls that it is asked by. Its "tokens" are words and single marks."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from lmnb.backends.base import Owner
from lmnb.backends.images import Picture
from lmnb.errors import ArgumentError
from lmnb.runtime.request import SamplingParams

WORD = re.compile(r"\s*\w+|\s+|\S", re.UNICODE)


@dataclass(frozen=True)
class Broken:
    """A reply that ends in an error: `text` is streamed, then `error` is raised."""

    text: str
    error: BaseException


@dataclass(frozen=True)
class ScriptedCall:
    """One call that a program made: `prompt` is the state's whole text at that moment."""

    kind: Literal["generate", "score", "commit", "fork", "concatenate"]
    prompt: str
    owner: Owner | None = None
    params: SamplingParams | None = None
    choices: tuple[str, ...] = ()
    images: tuple[Picture, ...] = ()  # in the prompt, each where it says "<image>"
    begun: str = ""  # what an earlier generation had said, which this one goes on from
    offset: int = 0


Reply = str | BaseException | Broken
Rule = Callable[[ScriptedCall], Reply]
Replies = Reply | Mapping[str, Reply] | Iterable[Reply] | Rule


@dataclass
class Script:
    """What to answer; one of the forms of `Replies`, made a rule."""

    replies: Replies
    _queue: Iterator[Reply] | None = field(default=None, repr=False)

    def answer(self, call: ScriptedCall) -> Reply:
        if isinstance(self.replies, (str, BaseException, Broken)):
            return self.replies
        if isinstance(self.replies, Mapping):
            return self._by_key(self.replies, call)
        if callable(self.replies):
            return self.replies(call)
        if self._queue is None:
            self._queue = iter(self.replies)
        for reply in self._queue:
            return reply
        return ArgumentError("the scripted backend has no reply left; give it a longer queue")

    @staticmethod
    def _by_key(replies: Mapping[str, Reply], call: ScriptedCall) -> Reply:
        var = call.owner.var if call.owner else None
        if var is not None and var in replies:
            return replies[var]
        for key, reply in replies.items():
            if key and call.prompt.endswith(key):
                return reply
        return replies.get("", f"<{var or 'text'}>")


def hashed_score(prompt: str, text: str) -> list[float]:
    """Made-up but repeatable log-probabilities of the words of `text` behind `prompt`."""
    tokens = WORD.findall(text) or [""]
    return [-(1 + zlib.crc32(f"{prompt}|{token}".encode()) % 997) / 1000 for token in tokens]
