"""A streamed answer of an SGLang server: cumulative results in, deltas and at last a generation out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lmnb.backends.base import Delta, Generation
from lmnb.backends.remote.endpoint_scoring import RemoteToken
from lmnb.backends.remote.streamed_text import StreamedText
from lmnb.backends.well_formed import well_formed
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
        self._num_tokens = self._prompt_tokens = self._cached_tokens = 0
        self._logprobs: list[TokenLogprob] = []
        self._input_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """What was shown."""
        return self._shown.shown

    @property
    def finish_reason(self) -> FinishReason:
        """Why the generation ended, when it has."""
        reason = self._meta.get("finish_reason") or {}
        return "length" if reason.get("type") == "length" else "stop"

    def take(self, event: dict[str, Any]) -> None:
        """One cumulative result. RemoteError if the server gave up."""
        tell = self._backend.wire.tell
        with tell.reading(lambda: event):
            self._text = well_formed(event["text"])
            self._meta = event["meta_info"]
            reason: dict[str, Any] = self._meta.get("finish_reason") or {}
            aborted = bool(reason) and reason["type"] == "abort"
            count = count_of(self._meta, "completion_tokens")
        if aborted:
            raise tell.says(reason.get("message") or "the request was aborted")
        if self._first_seconds is None and count:
            self._first_seconds = time.monotonic() - self._started
        with tell.reading(lambda: event):
            delta = self._new(count, last=bool(reason))
        if delta is not None:
            self._on_delta(delta)

    def finish(self) -> None:
        """The stream has ended."""
        if not self._meta.get("finish_reason"):
            raise self._backend.wire.tell.sent("a stream that ended before the generation did")
        meta = self._meta
        with self._backend.wire.tell.reading(lambda: meta):
            self._input_logprobs = self._read(meta, "input")
            self._prompt_tokens, self._cached_tokens = count_of(meta, "prompt_tokens"), count_of(meta, "cached_tokens")
        self._backend.token_usage.add(self._prompt_tokens, self._num_tokens)

    def generation(self, *, cancelled: bool) -> Generation:
        """What it came to."""
        meta = self._meta
        reason = meta.get("finish_reason") or {}
        return Generation(
            text=self.text,
            finish_reason="cancelled" if cancelled else self.finish_reason,
            matched=None if cancelled else reason.get("matched"),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._num_tokens,
            first_token_seconds=self._first_seconds,
            total_seconds=time.monotonic() - self._started,
            logprobs=tuple(self._logprobs),
            input_logprobs=self._input_logprobs,
            meta={"id": meta["id"]} if "id" in meta else {},
        )

    def _new(self, count: int, *, last: bool) -> Delta | None:
        """What the last event adds, if anything."""
        new = self._shown.take(self._text, last=last)
        if not new and not last:
            return None
        logprobs = self._read(self._meta, "output")[len(self._logprobs) :]
        more = count - self._num_tokens
        self._num_tokens = count
        self._logprobs += logprobs
        return Delta(new, more, logprobs) if new or logprobs or more > 0 else None

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


def count_of(meta: Mapping[str, Any], name: str) -> int:
    """A number of tokens in what a server tells; 0 if it does not tell this one. TypeError if it is none."""
    value = meta.get(name) or 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}")
    return value
