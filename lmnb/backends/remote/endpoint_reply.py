"""A streamed answer of an SGLang server: cumulative results in, deltas and at last a generation out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lmnb.backends.base import Delta, Generation
from lmnb.backends.remote.endpoint_scoring import RemoteToken
from lmnb.backends.remote.streamed_text import StreamedText
from lmnb.runtime.request import FinishReason, SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from lmnb.backends.remote.endpoint import RuntimeEndpoint


class Reply:
    """One generation in progress."""

    def __init__(self, backend: RuntimeEndpoint, params: SamplingParams, on_delta: Callable[[Delta], None]) -> None:
        self._backend = backend
        self._params = params
        self._on_delta = on_delta
        self._started = time.monotonic()
        self._first_seconds: float | None = None
        self._shown = StreamedText(params.stop, hold_all=bool(params.stop_regex))
        self._text = ""
        self._meta: dict[str, Any] = {}
        self._num_tokens = 0
        self._logprobs: list[TokenLogprob] = []

    @property
    def text(self) -> str:
        """What was shown."""
        return self._shown.shown

    def take(self, event: dict[str, Any]) -> None:
        """One cumulative result. RemoteError if the server gave up."""
        self._text = event["text"]
        self._meta = event["meta_info"]
        reason = self._meta.get("finish_reason")
        if reason and reason["type"] == "abort":
            raise self._backend.wire.error(reason.get("message") or "the request was aborted")
        if self._first_seconds is None and self._meta.get("completion_tokens"):
            self._first_seconds = time.monotonic() - self._started
        self._show(last=bool(reason))

    def finish(self) -> None:
        """The stream has ended."""
        if not self._meta.get("finish_reason"):
            raise self._backend.wire.error("the stream ended before the generation did")
        self._backend.token_usage.add(self._meta.get("prompt_tokens", 0), self._meta.get("completion_tokens", 0))

    def generation(self, *, cancelled: bool) -> Generation:
        """What it came to."""
        meta = self._meta
        reason = meta.get("finish_reason") or {}
        kind: FinishReason = "cancelled" if cancelled else "length" if reason.get("type") == "length" else "stop"
        return Generation(
            text=self.text,
            finish_reason=kind,
            matched=None if cancelled else reason.get("matched"),
            prompt_tokens=meta.get("prompt_tokens", 0),
            cached_tokens=meta.get("cached_tokens", 0),
            completion_tokens=meta.get("completion_tokens", 0),
            first_token_seconds=self._first_seconds,
            total_seconds=time.monotonic() - self._started,
            logprobs=tuple(self._logprobs),
            input_logprobs=self._read(meta, "input"),
            meta={"id": meta["id"]} if "id" in meta else {},
        )

    def _show(self, *, last: bool) -> None:
        new = self._shown.take(self._text, last=last)
        if not new and not last:
            return
        count = self._meta.get("completion_tokens", 0)
        logprobs = self._read(self._meta, "output")[len(self._logprobs) :]
        if new or logprobs or count > self._num_tokens:
            self._on_delta(Delta(new, count - self._num_tokens, logprobs))
        self._num_tokens = count
        self._logprobs += logprobs

    def _read(self, meta: dict[str, Any], which: str) -> tuple[TokenLogprob, ...]:
        entries = meta.get(f"{which}_token_logprobs") or []
        tops = meta.get(f"{which}_top_logprobs") or [None] * len(entries)
        result = []
        for entry, top in zip(entries, tops, strict=True):
            others = [RemoteToken.read(other) for other in top or ()]
            token = RemoteToken.read(entry)
            for one in (token, *others):
                self._backend.token_texts.learn(one.token_id, one.text)
            likeliest = tuple((one.token_id, one.logprob) for one in others if one.logprob is not None)
            result.append(TokenLogprob(token.token_id, token.logprob, likeliest))
        return tuple(result)
