"""One prompt as token ids that grow: text is appended with boundary repair, generated ids are kept as they are.

The ids equal the tokenizer's own on the joined text, as far as the model wrote canonical tokens and the tokenizer
can say the text at all (some byte-level vocabularies lack bytes of unassigned characters and drop them). Markers
(special tokens and the like) arise from trusted text only. It knows nothing of engines or roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from lmnb.backends.base import TokenSource
from lmnb.backends.prefix import common_prefix_length
from lmnb.backends.token_codec import TokenCodec
from lmnb.backends.well_formed import well_formed

_FIRST_WINDOW = 8  # tokens that are always looked at again
_SEARCH = 48  # tokens in which a safe cut is looked for, before that
_PIECE = 4096  # characters that are tokenized at a time: tokenizers hold the interpreter for as long as a call takes
_SAFE_CUT = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])")  # what `TokenCodec.is_safe_cut` says of tokens, in a text
_MARGIN = 64  # tokens by which a text may yet become shorter when it goes on


class Mark(NamedTuple):
    """A state that a stream was in, see `TokenStream.mark`."""

    length: int
    num_changes: int
    run: int
    run_continues: bool
    own_space: bool
    generated: int
    trusted_tail: str
    overflowed: bool


class TokenStream:
    """Token ids of a growing text.

    A *run* is the text since the last marker. Appending re-tokenizes the run's last few tokens
    together with the new text, from a cut that is safe for pre-tokenizers, and replaces what differs: the
    cost grows with the new text, not with the prompt. A long text is read in pieces, and only until there are more
    tokens than `limit`: then the stream has `overflowed`, and reads nothing more. Not thread-safe.
    """

    def __init__(self, codec: TokenCodec, limit: int | None = None) -> None:
        self._codec = codec
        self.limit = limit
        self.overflowed = False
        self._ids: list[int] = []
        self._tuple: tuple[int, ...] | None = ()  # of them, which forks share
        self._run = 0  # index of the run's first token
        self._run_continues = False  # the run is not as the tokenizer would start a text
        self._own_space = False  # the run's text begins with a space by itself
        self._generated = 0  # tokens at or past this index came from text; before it there may be generated ones
        self._trusted_tail = ""  # the end of the run, as far as it is trusted and could begin a marker
        self._sources: list[TokenSource] = []  # by token
        self._changed = 0  # index of the first token that the append in progress has changed
        self._marked = 0  # tokens before this one belong to a mark: what replaces them is kept, too
        self._changes: list[tuple[int, list[int], list[TokenSource]]] = []  # from there on, what stood there before

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens so far."""
        if self._tuple is None:
            self._tuple = tuple(self._ids)
        return self._tuple

    @property
    def sources(self) -> tuple[TokenSource, ...]:
        """Where each token came from."""
        return tuple(self._sources)

    @property
    def last_source(self) -> TokenSource | None:
        """Where the last token came from."""
        return self._sources[-1] if self._sources else None

    def text(self) -> str:
        """The text of all tokens, markers as they are written."""
        return self._codec.bytes_of(self._ids).decode("utf-8", errors="replace")

    def fork(self) -> TokenStream:
        """An independent copy."""
        twin = TokenStream(self._codec, self.limit)
        twin.overflowed = self.overflowed
        twin._ids = self._ids.copy()
        twin._tuple = self._tuple
        twin._run = self._run
        twin._run_continues = self._run_continues
        twin._own_space = self._own_space
        twin._generated = self._generated
        twin._trusted_tail = self._trusted_tail
        twin._sources = self._sources.copy()
        return twin

    def mark(self) -> Mark:
        """The present state, to come back to with `at`. Costs nothing: what is replaced later is kept."""
        self._marked = max(self._marked, len(self._ids))
        return Mark(
            len(self._ids),
            len(self._changes),
            self._run,
            self._run_continues,
            self._own_space,
            self._generated,
            self._trusted_tail,
            self.overflowed,
        )

    def at(self, mark: Mark) -> TokenStream:
        """A copy as this stream was when it gave the mark."""
        twin = self.fork()
        for start, ids, sources in reversed(self._changes[mark.num_changes :]):
            twin._ids[start:], twin._sources[start:] = ids, sources
        del twin._ids[mark.length :], twin._sources[mark.length :]
        twin._tuple = None
        twin._run, twin._run_continues, twin._own_space = mark.run, mark.run_continues, mark.own_space
        twin._generated, twin._trusted_tail = mark.generated, mark.trusted_tail
        twin.overflowed = mark.overflowed
        return twin

    def append(self, text: str, *, trusted: bool = False, source: TokenSource = "given") -> None:
        """Add text that comes from `source`. Markers in it are recognised only if `trusted`; text that is typed in
        several trusted pieces counts as one text, and nothing else can complete a marker."""
        for piece in _pieces(well_formed(text)):
            self.overflowed |= self.limit is not None and len(self._ids) > self.limit + _MARGIN
            if self.overflowed:
                return
            self._tuple = None
            self._changed = len(self._ids)
            if trusted:
                self._append_trusted(piece)
            else:
                self._append_plain(piece)
                self._trusted_tail = ""
            self._note(source)

    def append_ids(self, ids: Sequence[int]) -> None:
        """Add generated tokens exactly as they are."""
        if not ids:
            return
        self._tuple = None
        self._changed = len(self._ids)
        for token_id in ids:
            if len(self._ids) == self._run:
                self._own_space = self._codec.token_bytes(token_id).startswith(b" ")
                self._run_continues |= not self._own_space  # then no space was put before the model's text
            self._ids.append(token_id)
            if token_id in self._codec.marker_ids:
                self._start_run()
        self._generated = len(self._ids)
        self._trusted_tail = ""
        self._note("generated")

    def fix(self, start: int, ids: Sequence[int], sources: Sequence[TokenSource]) -> None:
        """Put given tokens in place of those from `start` on, which say the beginning of the same text. No token up to
        here changes with what follows any more."""
        self._keep(start)
        self._tuple = None
        self._ids[start:], self._sources[start:] = ids, sources
        self._start_run(continues=True)
        self._generated = len(self._ids)
        self._trusted_tail = ""

    def _note(self, source: TokenSource) -> None:
        """All tokens from the first changed one on come from `source`."""
        self._sources[self._changed :] = [source] * (len(self._ids) - self._changed)

    def _start_run(self, *, continues: bool = False) -> None:
        self._run = len(self._ids)
        self._run_continues = continues

    def _append_trusted(self, text: str) -> None:
        tail = self._trusted_tail
        joined = tail + text
        pieces = self._codec.split_trusted(joined)
        alone = self._codec.split_trusted(text) if tail else pieces
        crossing = _markers(pieces) != _markers(alone)
        if crossing and self._complete_marker(joined, len(tail), _markers(pieces)[0]):
            return
        for piece in alone:
            if isinstance(piece, int):
                self._ids.append(piece)
                self._start_run()
                tail = ""
            else:
                self._append_plain(piece)
                tail += piece
        self._trusted_tail = tail[-self._codec.longest_marker :] if self._codec.longest_marker else ""

    def _complete_marker(self, joined: str, tail_length: int, marker: int) -> bool:
        """Take back the half of a marker that an earlier trusted piece brought, and go on after it."""
        written = self._codec.marker_text(marker)
        at = joined.find(written)
        if not 0 <= at < tail_length or not self._drop(joined[at:tail_length]):
            return False
        self._ids.append(marker)
        self._start_run()
        self._trusted_tail = ""
        if joined[at + len(written) :]:
            self._append_trusted(joined[at + len(written) :])
        return True

    def _drop(self, text: str) -> bool:
        """Remove `text` from the end of the run; False if the run does not end with it."""
        start = len(self._ids)
        while start > self._run and len(self._codec.bytes_of(self._ids[start:])) < len(text.encode()):
            start -= 1
        start = self._cut(start)
        window = self._codec.bytes_of(self._ids[start:])
        if not window.endswith(text.encode()):
            return False
        kept = self._without_space(start, window[: len(window) - len(text.encode())].decode("utf-8", errors="replace"))
        self._keep(start)
        self._ids[start:] = self._encode_from(start, kept) if kept else []
        self._changed = min(self._changed, start)
        return True

    def _append_plain(self, text: str) -> None:
        """Append data: find a window whose own tokenization agrees with the ids, and re-tokenize from there."""
        size = _FIRST_WINDOW
        while len(self._ids) > self._run:
            start = self._window(size)
            old = self._ids[start:]
            before = self._window_text(start)
            if before is None:
                continue  # the run is shorter now: it begins after the bytes that are no text
            base = self._encode_from(start, before)
            # Generated tokens need not be canonical, so a wider window need not agree any better.
            given_up = start == self._run or (self._generated > start and size > _FIRST_WINDOW)
            if base == old or given_up:
                self._replace(start, old, base, self._encode_from(start, before + text))
                return
            size *= 4
        self._own_space = text.startswith(" ")
        self._ids += self._encode_from(self._run, text)

    def _replace(self, start: int, old: list[int], base: list[int], merged: list[int]) -> None:
        """Keep of `old` what `text` does not change (it changes `base` to `merged`), and go on with `merged`."""
        codec = self._codec
        limit = len(codec.bytes_of(base[: common_prefix_length([base, merged])]))
        ends = {end: index for index, end in enumerate(_ends(codec, merged))}
        kept = max(i for i, end in enumerate(_ends(codec, old)) if end <= limit and end in ends)
        new = merged[ends[_ends(codec, old)[kept]] :]
        self._keep(start + kept)
        self._ids[start + kept :] = new
        self._changed = min(self._changed, start + kept)
        self._generated = min(self._generated, start + kept)

    def _keep(self, start: int) -> None:
        """The tokens from `start` on are about to be replaced."""
        if start < self._marked:
            self._changes.append((start, self._ids[start:], self._sources[start:]))

    def _window(self, size: int) -> int:
        """Where to re-tokenize from: at least `size` tokens and the codec's reach back, at a safe cut."""
        start = len(self._ids)
        num_bytes = 0
        while start > self._run and (len(self._ids) - start < size or num_bytes < self._codec.reach):
            start -= 1
            num_bytes += len(self._codec.token_bytes(self._ids[start]))
        return self._cut(start)

    def _cut(self, start: int) -> int:
        """The nearest safe cut at or before `start`; if none is near, some place between two characters."""
        for index in range(start, max(self._run, start - _SEARCH), -1):
            if index < len(self._ids) and self._codec.is_safe_cut(self._ids[index - 1], self._ids[index]):
                return index
        start = max(self._run, start - _SEARCH)
        while start > self._run and self._codec.starts_inside_character(self._ids[start]):
            start -= 1
        return start

    def _window_text(self, start: int) -> str | None:
        """Text of the ids from `start`; None if bytes in it are no text (then the run starts after them)."""
        data = self._codec.bytes_of(self._ids[start:])
        try:
            return self._without_space(start, data.decode("utf-8"))
        except UnicodeDecodeError as error:
            ends = _ends(self._codec, self._ids[start:])
            bad_end = max(error.end, error.start + 1)
            self._run = start + next(index for index, end in enumerate(ends) if end >= bad_end)
            self._run_continues = True
            return None

    def _without_space(self, start: int, text: str) -> str:
        """`text` of the ids from `start`, less the space that the tokenizer itself put before the run."""
        if start > self._run or self._run_continues:
            return text
        return self._codec.without_put_space(text, first=start == 0, own_space=self._own_space)

    def _encode_from(self, start: int, text: str) -> list[int]:
        if start == self._run and not self._run_continues:
            return self._codec.encode_start(text, first=start == 0)
        return self._codec.encode_inside(text)


def _ends(codec: TokenCodec, ids: Sequence[int]) -> list[int]:
    """Byte offsets between tokens: 0, the end of the first, of the second ..."""
    return list(accumulate((len(codec.token_bytes(i)) for i in ids), initial=0))


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces, cut between two words where there are any."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        if end < len(text):
            cut = _SAFE_CUT.search(text, end, end + _PIECE)
            end += _PIECE if cut is None else cut.start() - end
        yield text[start:end]
        start = end


def _markers(pieces: Sequence[str | int]) -> list[int]:
    return [piece for piece in pieces if isinstance(piece, int)]
