"""The rows of a step: which of a sequence's tokens it computes, and what they see. What a branch has is copied."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.prefix_cache import Tokens
from lmnb.runtime.prompt_layout import merged
from lmnb.runtime.radix_cache import RadixCache
from lmnb.runtime.sequence import Sequence
from lmnb.runtime.slot_table import SlotTable

# Parts of joined prompts that are computed in one step at most: each takes a row of the slot table for that long.
MAX_BRANCH_ROWS = 16


class Row(NamedTuple):
    """A part of a step: a sequence's tokens [start, end), whose slots stand in row `place` of the slot table, from
    `column` on, behind those of all that they see."""

    sequence: Sequence
    start: int
    end: int
    place: int
    column: int

    @property
    def is_last(self) -> bool:
        """The row ends at the sequence's last known token, so its logits give the next one."""
        return self.end == self.sequence.num_tokens

    @property
    def leads_on(self) -> bool:
        """A token is chosen from its last one's logits."""
        sequence = self.sequence
        return self.is_last and sequence.request.sampling.max_new_tokens > 0 and not sequence.output.finished

    @property
    def is_single(self) -> bool:
        """One token that sees the whole sequence before it, all of which was computed by earlier steps."""
        sequence = self.sequence
        return self.num_tokens == 1 and self.place == sequence.row and self.start == sequence.num_computed

    @property
    def num_tokens(self) -> int:
        """How many it computes."""
        return self.end - self.start

    @property
    def kv_len(self) -> int:
        """How many tokens its last one sees, itself included."""
        return self.column + self.num_tokens


def of_tokens(values: list[int], counts: list[int], *, rising: bool = True) -> NDArray[np.int64]:
    """The value of each row's first token, given for as many tokens as each row has; one more from token to token if
    `rising`."""
    first = np.array(values)
    if len(first) == sum(counts):
        return first  # a token each
    spread = np.repeat(first, counts)
    return spread + numbers_within(np.array(counts)) if rising else spread


def numbers_within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... below each of `counts`, one after the other."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


class RowMaker:
    """Makes the rows of prompts, step after step. Used by the scheduler, whose pool, table and cache these are."""

    def __init__(self, pool: KVPool, table: SlotTable, cache: RadixCache) -> None:
        self.has_copied = False  # in this step, which is progress even without rows
        self._pool, self._table, self._cache = pool, table, cache
        self._num_branch_rows = 0  # in this step

    def begin(self) -> None:
        """A new step."""
        self._num_branch_rows = 0
        self.has_copied = False

    def add(self, rows: list[Row], sequence: Sequence, budget: int) -> int:
        """Rows for what the sequence has yet to compute, as far as budget and memory go: one for each section of its
        layout. Returns how many tokens they have."""
        spent = 0
        while sequence.num_slots < sequence.num_tokens:
            while sequence.layout.sections and self._copy_branch(sequence):
                if not spent:
                    sequence.num_computed = sequence.num_slots
            start = sequence.num_slots
            wanted = min(budget - spent, sequence.layout.end_at(start, sequence.num_tokens) - start)
            make_room(self._pool, self._cache, wanted, sequence)
            count = min(wanted, self._pool.num_free)
            if count <= 0 or not self._add_row(rows, sequence, count):
                break
            spent += count
        return spent

    def _add_row(self, rows: list[Row], sequence: Sequence, count: int) -> bool:
        """A row for the next `count` tokens, which are of one section. False: the step has no place for it."""
        start = sequence.num_slots
        end = start + count
        sees = sequence.layout.section_at(start).until(start)
        is_whole = sees == merged([(0, start)])
        if not is_whole and self._num_branch_rows == MAX_BRANCH_ROWS:
            return False
        slots = self._pool.alloc(count)
        self._table.write(sequence.row, start, slots, fresh=is_whole)
        sequence.num_slots = end
        if is_whole:
            rows.append(Row(sequence, start, end, sequence.row, start))
            return True
        place = self._table.num_rows + self._num_branch_rows
        self._num_branch_rows += 1
        seen = [self._table.read(sequence.row, *each) for each in sees]
        row = np.concatenate([*seen, slots])
        self._table.write(place, 0, row)
        rows.append(Row(sequence, start, end, place, len(row) - count))
        return True

    def _copy_branch(self, sequence: Sequence) -> bool:
        """If the next token begins a section that does not see all before it, and a branch that the section comes
        from is in the tree: copy its keys and values. They are what computing the section would give. False: there
        was nothing to copy."""
        start, layout = sequence.num_slots, sequence.layout
        section = layout.section_at(start)
        limit = min(layout.end_at(start, sequence.num_tokens), sequence.match_limit)
        if section.start != start or section.sees == merged([(0, start)]) or limit <= start:
            return False
        for ranges, branch in layout.branches_with(start, sequence.num_tokens):
            tokens = np.concatenate([sequence.tokens[a : min(b, limit)] for a, b in ranges])
            before = sum(max(0, min(b, start) - a) for a, b in ranges)
            count = self._copy(sequence, self._cache.seams.keys(tokens[: before + limit - start], branch), before)
            if count:
                return True
        return False

    def _copy(self, sequence: Sequence, keys: Tokens, start: int) -> int:
        """Copy what the tree has of `keys` from `start` on to the sequence's next tokens. Returns how many."""
        match = self._cache.acquire(keys)
        try:
            wanted = max(0, len(match.slots) - start)
            make_room(self._pool, self._cache, wanted, sequence)
            count = min(wanted, self._pool.num_free)
            if not count:
                return 0
            self.has_copied = True
            slots = self._pool.alloc(count)
            self._table.write(sequence.row, sequence.num_slots, slots)
            sequence.num_slots += count  # the sequence's own from here on, whatever becomes of the copy
            self._pool.copy(match.slots[start : start + count], slots)
            self._cache.record_hit(match.node, count, sequence.request.owner)
        finally:
            self._cache.release(match.node)
        if sequence.num_preemptions == 0:
            sequence.cached_tokens = (sequence.cached_tokens or 0) + count
        return count


def make_room(pool: KVPool, cache: RadixCache, count: int, sequence: Sequence | None) -> bool:
    """Evict until `count` slots are free, if that can be. `sequence`: who needs them, None if several do."""
    missing = count - pool.num_free
    if missing > 0:
        beneficiary = None if sequence is None else sequence.request.owner
        pool.free(cache.evict(missing, beneficiary=beneficiary))
    return pool.num_free >= count
