"""Which tokens spell text that must come next, behind what was generated. Knows no grammars and no requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lmnb.runtime.retokenize import Retokenizer, common_length

_NUM_KEPT, _LONGEST_KEPT = 2048, 1024  # plans that are remembered, and tokens and bytes that each is made from
_Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Jump:
    """Replace the last `num_replaced` generated tokens by `token_ids`, of which the first `num_needed` spell them; the
    others spell text more, all that is forced if `is_whole`."""

    num_replaced: int
    token_ids: _Tokens
    num_needed: int
    is_whole: bool

    def within(self, room: int) -> Jump | None:
        """The same with at most `room` tokens more than are replaced; None if that is not enough."""
        count = self.num_replaced + room
        if len(self.token_ids) <= count:
            return self
        if count < max(1, self.num_needed):
            return None
        return Jump(self.num_replaced, self.token_ids[:count], self.num_needed, is_whole=False)


# Told how to write all that is forced, tells the first bytes of whatever may come behind it; empty: nothing may; None:
# anything may.
Following = Callable[[Jump], Collection[int] | None]


class JumpPlanner:
    """Threads may share it. It remembers plans, since many requests of one grammar ask for the same."""

    def __init__(self, retokenizer: Retokenizer) -> None:
        self._retokenizer = retokenizer
        self._recall_text = lru_cache(_NUM_KEPT)(self._text)
        self._recall_plan = lru_cache(_NUM_KEPT)(self._make)

    def plan(
        self,
        generated: Sequence[int],
        forced: bytes,
        blocked: frozenset[int],
        room: int,
        following: Following | None = None,
    ) -> Jump | None:
        """What `forced`, the bytes that must follow the `generated` tokens, allows to be added now; None if nothing.

        The prompt's tokens are never touched. `blocked`: ids that must not be used. `room`: generated tokens that may
        be added at most. `following` is asked only if it matters, and tokens that may be used spell all of `forced`.
        """
        start = self._retokenizer.window(generated)
        if start is None:
            return None
        old = tuple(generated[start:])
        keeps = len(old) + len(forced) <= _LONGEST_KEPT
        text, first, is_open = (self._recall_text if keeps else self._text)(old, forced)
        if text is None:
            return None
        make = self._recall_plan if keeps else self._make
        if is_open and following is not None:
            whole = make(old, forced, text, frozenset(), blocked)  # the plan if nothing may come behind it
            found = following(whole) if whole is not None and whole.is_whole else None
            first = None if found is None else frozenset(found)
        plan = make(old, forced, text, first, blocked)
        return None if plan is None else plan.within(room)

    def _text(self, old: _Tokens, forced: bytes) -> tuple[str | None, frozenset[int] | None, bool]:
        """The whole characters of both, None if they say nothing more than `old`; the bytes that may follow them, None:
        any; and whether a grammar can tell more of those."""
        before = self._retokenizer.bytes_of(old)
        data = before + forced
        text = _whole_characters(data)
        size = 0 if text is None else len(text.encode())
        if text is None or size <= len(before):
            return None, None, False
        if size < len(data):  # a character has begun
            return text, frozenset(data[size : size + 1]), False
        return text, None, self._retokenizer.is_open(text)

    def _make(
        self, old: _Tokens, forced: bytes, text: str, first: frozenset[int] | None, blocked: frozenset[int]
    ) -> Jump | None:
        """The plan where there is room for all of it. `first`: the bytes that may follow `text`; None: any."""
        retokenizer = self._retokenizer
        before = retokenizer.bytes_of(old)
        new = retokenizer.stable(text, first)
        new = new[: next((i for i, token in enumerate(new) if token in blocked), len(new))]
        sizes = retokenizer.ends(new)
        is_whole = sizes[-1] == len(before) + len(forced)
        if new[: len(old)] == list(old):
            added = tuple(new[len(old) :])
            return Jump(0, added, 0, is_whole) if added else None
        if sizes[-1] <= len(before):
            return None
        kept = self._num_kept(old, before, new, sizes)
        begin = sizes.index(len(retokenizer.bytes_of(old[:kept])))
        num_needed = next(i for i, size in enumerate(sizes[begin:]) if size >= len(before))
        return Jump(len(old) - kept, tuple(new[begin:]), num_needed, is_whole)

    def _num_kept(self, old: _Tokens, before: bytes, new: list[int], sizes: list[int]) -> int:
        """How many of the `old` tokens stay. Not only those that `new` has too: what the model wrote in a way of its
        own stays as well, as far as the text behind it makes no difference to how it would be tokenized."""
        text = _whole_characters(before)
        base = self._retokenizer.encode(text) if text else None
        same = common_length(base or [], new)
        limit = sizes[same]
        boundaries = set(sizes)
        return max(i for i, end in enumerate(self._retokenizer.ends(old)) if end <= limit and end in boundaries)


def _whole_characters(data: bytes) -> str | None:
    """`data` without an unfinished character at its end; None if it is no text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.start < len(data) - 3:
            return None
        return data[: error.start].decode()
