"""One generation of a vendor's API in progress: what came, what was told, what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lmnb.backends.base import Delta, Generation
from lmnb.runtime.request import FinishReason, TokenLogprob


class ApiReply:
    """Backends fill it in while a stream comes."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._started = time.monotonic()
        self._first_seconds: float | None = None
        self._logprobs: list[TokenLogprob] = []
        self._num_told = 0
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.matched: str | int | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens: int | None = None  # as the API counts them
        self.counted = False  # whether the backend's `token_usage` has it already
        self.meta: dict[str, Any] = {}

    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """A piece came. Without log-probabilities a piece counts as one token."""
        if not text and not logprobs:
            return
        if self._first_seconds is None:
            self._first_seconds = time.monotonic() - self._started
        count = len(logprobs) or 1
        self.text += text
        self._logprobs += logprobs
        self._num_told += count
        self._on_delta(Delta(text, count, tuple(logprobs)))

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
