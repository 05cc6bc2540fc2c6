"""One generation of a vendor's API in progress: what came, what was told, what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lmnb.backends.base import Delta, Generation
from lmnb.backends.remote.unreadable import Teller
from lmnb.backends.well_formed import joined_halves
from lmnb.runtime.request import FinishReason, TokenLogprob


class ApiReply:
    """Backends fill it in while a stream comes."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._started = time.monotonic()
        self._first_seconds: float | None = None
        self._logprobs: list[TokenLogprob] = []
        self._num_told = 0
        self._half = ""  # of a character: what a piece ended with, until the next one brings the rest
        self.text = ""
        self.refusal = ""  # what the model said in the place of an answer
        self.finish_reason: FinishReason | None = None
        self.matched: str | int | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens: int | None = None  # as the API counts them
        self.counted = False  # whether the backend's `token_usage` has it already
        self.meta: dict[str, Any] = {}

    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """A piece came. Without log-probabilities a piece counts as one token. TypeError if it is no text."""
        if not isinstance(text, str):
            raise TypeError(f"a piece of text is a {type(text).__name__}")
        if not text and not logprobs:
            return
        text, self._half = joined_halves(self._half + text)
        if not text and not logprobs:
            return
        if self._first_seconds is None:
            self._first_seconds = time.monotonic() - self._started
        count = len(logprobs) or 1
        self.text += text
        self._logprobs += logprobs
        self._num_told += count
        self._on_delta(Delta(text, count, tuple(logprobs)))

    def end(self, tell: Teller) -> None:
        """The stream has ended. RemoteError if the answer had not: a text that stops anywhere is no answer."""
        if self._half:
            self._half = ""
            self.add("\ufffd")
        if self.refusal:
            raise tell.sent("a refusal in the place of an answer", self.refusal)
        if self.finish_reason is None:
            came = "what came before is in the text" if self.text else "nothing of a text came"
            raise tell.sent(f"a stream that ended before the answer did; {came}")

    def generation(self, *, cancelled: bool) -> Generation:
        """What it came to."""
        return Generation(
            text=self.text,
            finish_reason="cancelled" if cancelled else self.finish_reason or "stop",
            matched=None if cancelled else self.matched,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self._num_told if self.completion_tokens is None else self.completion_tokens,
            first_token_seconds=self._first_seconds,
            total_seconds=time.monotonic() - self._started,
            logprobs=tuple(self._logprobs),
            meta=self.meta,
        )
