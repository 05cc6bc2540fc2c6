"""When a request ends, and which text of it may be shown: stop strings and regexes, end tokens, length.

`OutputStream` turns one request's tokens into publishable text. Knows nothing of logits or scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmnb.runtime.detokenizer import Detokenizer
from lmnb.runtime.request import FinishReason, SamplingParams
from lmnb.runtime.stop_strings import Stops
from lmnb.runtime.tokenizer import Tokenizer


def end_token_ids(params: SamplingParams, eos_ids: Iterable[int]) -> frozenset[int]:
    """The tokens that end a request: the model's end tokens and `stop_token_ids`, or none under `ignore_eos`.

    A constrained request always ends at the model's end tokens: they are how its match ends.
    """
    if not params.ignore_eos:
        return frozenset(eos_ids).union(params.stop_token_ids)
    return frozenset(eos_ids) if params.constraint is not None else frozenset()


class OutputStream:
    """The output of one request, token by token: `push` each sampled token, publish what it returns.

    `text` is all that was returned so far. Once `finished`, the result is in `text`, `finish_reason`, `matched`,
    `num_kept_tokens`, and nothing may be pushed any more.
    """

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer, eos_ids: Iterable[int]) -> None:
        self.end_ids = end_token_ids(params, eos_ids)
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.matched: str | int | None = None
        self._max_new_tokens = params.max_new_tokens
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = Stops(params.stop, params.stop_regex) if params.stop or params.stop_regex else None
        self._pieces: list[str] = []
        self._num_published = 0  # characters in _pieces
        self._held = ""  # may turn out to be the start of a stop
        # Characters decoded up to and including each token; -1 where a token ends within a character.
        self._boundaries: list[int] = []
        self._num_decoded = 0

    @property
    def finished(self) -> bool:
        """Whether anything has ended this output."""
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """All text that was returned: what may be shown."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def push(self, token_id: int) -> str:
        """Take one sampled token; return the text that may now be published. May finish the stream."""
        assert not self.finished, "a finished output takes no more tokens"
        self.token_ids.append(token_id)
        if token_id in self.end_ids:
            return self._finish("stop", token_id)
        return self._take(self._detokenizer.push(token_id))

    def replace(self, num_replaced: int, token_ids: Sequence[int], data: Sequence[bytes]) -> str:
        """Take tokens that were not sampled, in place of the last `num_replaced` ones: `data`, the bytes of each,
        begins with the bytes of those. Return the text that may now be published. May finish the stream before
        the last token: an end token ends it here too, unless text that was there already is a part of it."""
        assert not self.finished, "a finished output takes no more tokens"
        removed = self._remove(num_replaced)
        published = ""
        end = 0
        for token_id, piece in zip(token_ids, data, strict=True):
            end += len(piece)
            self.token_ids.append(token_id)
            if end < len(removed):
                self._boundaries.append(self._characters_before(removed[end:]))
                continue
            if token_id in self.end_ids and end - len(piece) >= len(removed):
                return published + self._finish("stop", token_id)
            new = piece[max(0, len(removed) - end + len(piece)) :]
            published += self._take(self._detokenizer.push_bytes(new))
            if self.finish_reason is not None:
                break
        return published

    def _take(self, piece: str) -> str:
        """The text of the last of `token_ids`; return what may be published now. May finish the stream."""
        self._num_decoded += len(piece)
        self._boundaries.append(self._num_decoded if self._detokenizer.is_whole else -1)
        published = self._scan(piece)
        if self.finish_reason is None and len(self.token_ids) >= self._max_new_tokens:
            published += self._finish("length")
        return published

    def _remove(self, count: int) -> bytes:
        """Forget the last tokens, not their text; their bytes."""
        kept = len(self.token_ids) - count
        removed = self._detokenizer.bytes_of(self.token_ids[kept:])
        del self.token_ids[kept:], self._boundaries[kept:]
        return removed

    def _characters_before(self, rest: bytes) -> int:
        """Characters decoded before `rest`, the last bytes that were decoded; -1 if it begins within one."""
        if rest[0] & 0xC0 == 0x80:
            return -1
        begun = sum(byte & 0xC0 != 0x80 for byte in rest)
        return self._num_decoded - begun + (0 < self._detokenizer.pending <= len(rest))

    def finish(self, reason: FinishReason, matched: str | int | None = None) -> str:
        """End the stream from outside (cancelled, a match that is complete, an error); return the text held back.

        A match that is complete at the very token that reaches the limit has stopped by itself.
        """
        if self.finish_reason == "length" and reason == "stop":
            self.finish_reason, self.matched = reason, matched
        return "" if self.finished else self._finish(reason, matched)

    @property
    def num_kept_tokens(self) -> int:
        """How many leading tokens decode exactly to a prefix of `text`."""
        for count in range(len(self._boundaries), 0, -1):
            if 0 <= self._boundaries[count - 1] <= self._num_published:
                return count
        return 0

    def _finish(self, reason: FinishReason, matched: str | int | None = None) -> str:
        rest = self._detokenizer.finish()
        if rest:
            self._num_decoded += len(rest)
            self._boundaries[-1] = self._num_decoded  # all tokens together decode to this very text
        published = self._scan(rest)
        if self.finish_reason is None and self._stops is not None and (found := self._stops.end()) is not None:
            published += self._stop("", found)
        if self.finish_reason is None:  # unless the rest, or the end, completed a stop
            self.finish_reason, self.matched = reason, matched
            published += self._publish(self._held)
            self._held = ""
        return published

    def _scan(self, piece: str) -> str:
        """Pass new text on, less what may be the start of a stop; end at a stop."""
        if self._stops is None:
            return self._publish(piece)
        found = self._stops.feed(piece)
        if found is not None:
            return self._stop(piece, found)
        undecided = self._held + piece
        cut = len(undecided) - self._stops.held
        self._held = undecided[cut:]
        return self._publish(undecided[:cut])

    def _stop(self, piece: str, found: tuple[int, int, str]) -> str:
        """End at a match; pass on what is before it."""
        end, length, stop = found
        self.finish_reason, self.matched = "stop", stop
        undecided, self._held = self._held + piece, ""
        return self._publish(undecided[: len(undecided) - len(piece) + end - length])

    def _publish(self, text: str) -> str:
        if text:
            self._pieces.append(text)
            self._num_published += len(text)
        return text
