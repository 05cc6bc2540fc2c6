"""Which tokens are computed next: continuous batching, chunked prefill, sharing within a batch, preemption.

It owns the sequences' slots and the radix cache; it never touches tensors. Order of admission: longest cached
prefix first (arXiv 2312.07104, section 3), except that a request which was overtaken often enough goes first.
"""

from __future__ import annotations

import time
from bisect import bisect
from contextlib import suppress

import numpy as np

from lmnb.runtime.config import EngineLimits
from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.prefills import Prefills
from lmnb.runtime.prefix_cache import Match
from lmnb.runtime.radix_cache import RadixCache
from lmnb.runtime.radix_node import RadixNode
from lmnb.runtime.rows import MAX_BRANCH_ROWS, Row, RowMaker, make_room
from lmnb.runtime.sequence import Sequence
from lmnb.runtime.slot_table import SlotTable

# Slots kept free for each running sequence when another is admitted, so that it is not preempted at once.
_DECODE_RESERVE = 16
# Forced text goes to the tree once a sequence has so many tokens of its own. Its tokens are computed several at a time,
# each of which reads all that is the sequence's own, where what the tree has is read once.
_MOST_OWN_TOKENS = 64
# Of those that wait, so many are looked at, those that came first: looking through thousands takes longer than a step.
_MOST_LOOKED_AT = 256


class Scheduler:
    """Used by the engine thread only."""

    def __init__(self, limits: EngineLimits, pool: KVPool, cache: RadixCache) -> None:
        self.limits = limits
        self.pool = pool
        self.cache = cache
        self.table = SlotTable(limits.max_running, pool.num_slots, num_extra=MAX_BRANCH_ROWS)
        self.rows = RowMaker(pool, self.table, cache)
        self.waiting: list[Sequence] = []  # as they came; those that were put back before all others
        self.running: list[Sequence] = []  # admitted, oldest admission first
        self.is_idle = False  # after `schedule`: it has found nothing to do
        self.starved: Sequence | None = None  # after `schedule`: it alone is left, and pins hold what it needs
        self.seconds = 0.0  # spent here: the radix tree and slot bookkeeping
        self._preempted = False
        self._suspect: Sequence | None = None  # whose turn it is in `schedule`

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        self._give_keys(sequence)
        self.waiting.append(sequence)

    @property
    def can_step_ahead(self) -> bool:
        """Whether the next step fits without preemption, so that it may be scheduled before the last one's tokens
        are known: a sequence whose tokens are on their way cannot be put back."""
        return self.pool.num_free + self.cache.num_evictable >= len(self.running)

    def schedule(self, *, ahead: bool = False) -> list[Row]:
        """The next step's rows, one-token rows first; their slots are allocated and in the table. `ahead`: another
        step's tokens are still on their way, so nothing is preempted."""
        began = time.perf_counter()
        self._preempted = self.is_idle = False
        self.rows.begin()
        self._suspect = None
        rows = self._decode_rows()
        rows += self._prefill_rows(self.limits.prefill_chunk)
        while not rows and not ahead and self._must_yield():
            self._preempt(self.running[-1])
            rows = self._prefill_rows(self.limits.prefill_chunk)
        rows.sort(key=lambda row: not row.is_single)
        self.is_idle = not (rows or ahead or self._preempted or self.rows.has_copied)
        self.starved = self._find_starved() if self.is_idle else None
        self._suspect = None
        self.seconds += time.perf_counter() - began
        return rows

    def abandon_step(self) -> Sequence | None:
        """`schedule` has failed: give back the slots of the rows that it had made. Returns the sequence that it was
        looking at, if it was one alone."""
        for sequence in self.running:
            if sequence.num_slots > sequence.num_computed:
                self._free_slots(sequence, sequence.num_computed)
        self.waiting = [sequence for sequence in self.waiting if sequence.row < 0]
        suspect, self._suspect = self._suspect, None
        return suspect

    def complete(self, rows: list[Row]) -> None:
        """The rows' KV has been written: let others share what belongs to prompts, and much forced text."""
        began = time.perf_counter()
        for row in rows:
            sequence = row.sequence
            sequence.num_computed = sequence.num_slots
            if row.start >= sequence.prefill_end:
                continue
            is_given = row.start < sequence.num_prompt + sequence.num_begun
            if is_given or sequence.num_computed - sequence.num_shared > _MOST_OWN_TOKENS:
                self._share(sequence)
        self.seconds += time.perf_counter() - began

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """The sequence is over. `keep`: its KV is sound and stays in the cache."""
        began = time.perf_counter()
        if sequence.row < 0:
            with suppress(ValueError):  # it may not have come so far
                self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._leave(sequence, keep=keep)
        self.seconds += time.perf_counter() - began

    def share_with(self, newcomer: Sequence) -> None:
        """Let the tree have what running sequences have generated, as far as `newcomer` begins with it. No token may
        be on its way."""
        self._give_keys(newcomer)
        for sequence in self.running:
            length = min(sequence.num_computed, newcomer.num_tokens)
            differs = sequence.keys(length) != newcomer.keys(length)
            if (int(differs.argmax()) if differs.any() else length) > sequence.num_shared:
                self._share(sequence)

    def rewind(self, sequence: Sequence, length: int) -> None:
        """Give up the KV of an admitted sequence from token `length` on: those tokens are about to be replaced."""
        if sequence.num_computed <= length:
            return
        began = time.perf_counter()
        self._free_slots(sequence, max(length, sequence.num_shared))
        if length < sequence.num_shared:
            # The tree keeps what it has; the sequence holds on to less of it.
            match = self.cache.acquire(sequence.keys(length))
            assert len(match.slots) == length, "a locked prefix is always in the tree"
            if sequence.node is not None:
                self.cache.release(sequence.node)
            sequence.node, sequence.tail = match.node, None
            sequence.num_shared = sequence.num_slots = length
        sequence.num_computed = length
        sequence.num_matched = min(sequence.num_matched, length)
        self.seconds += time.perf_counter() - began

    def shared_length(self, rows: list[Row]) -> int:
        """Leading tokens whose slots are the same in all `rows`."""
        if len(rows) < 2:
            return 0
        began = time.perf_counter()
        nodes: list[RadixNode] = []
        for row in rows:
            if row.sequence.node is None:
                return 0
            nodes.append(row.sequence.node)
        # A node may have grown past what a sequence took from it, hence the second bound.
        length = min(self.cache.common_length(nodes), min(row.sequence.num_shared for row in rows))
        self.seconds += time.perf_counter() - began
        return length

    def users(self, node: RadixNode) -> list[Sequence]:
        """The running sequences that hold `node`."""
        return [each for each in self.running if each.node is not None and node in each.node.path()]

    def check_integrity(self) -> None:
        """Every slot is free, in the tree, or private to one admitted sequence."""
        used = [self.cache.check_integrity()]
        locks: dict[int, int] = {}
        for sequence in self.running:
            used.append(self.table.read(sequence.row, sequence.num_shared, sequence.num_slots))
            for held in () if sequence.node is None else sequence.node.path():
                locks[held.id] = locks.get(held.id, 0) + 1
        self.pool.check_integrity(np.concatenate(used))
        for node in self.cache.nodes():
            wanted = locks.get(node.id, 0) + node.pins
            assert node.locks == wanted, f"node {node.id}: {node.locks} locks, not {wanted}"

    # -- rows --

    def _decode_rows(self) -> list[Row]:
        decoding = [sequence for sequence in self.running if sequence.is_decoding and sequence.wants_token]
        while decoding and not self._make_room(len(decoding), decoding[0] if len(decoding) == 1 else None):
            victim = self.running[-1]
            self._preempt(victim)
            decoding = [sequence for sequence in decoding if sequence is not victim]
        if not decoding:
            return []
        starts = [sequence.num_computed for sequence in decoding]
        slots = self.pool.alloc(len(decoding))
        self.table.write_column([sequence.row for sequence in decoding], starts, slots)
        rows = []
        for sequence, start in zip(decoding, starts, strict=True):
            sequence.num_slots = start + 1
            rows.append(Row(sequence, start, start + 1, sequence.row, start))
        return rows

    def _prefill_rows(self, budget: int) -> list[Row]:
        rows: list[Row] = []
        for sequence in self.running:
            if not sequence.is_decoding and budget > 0:
                budget -= self._add_rows(rows, sequence, budget)
        if self._preempted:
            return rows  # memory is short: let the running ones finish first
        if self.waiting and budget > 0 and len(self.running) < self.limits.max_running:
            self._admit_rows(rows, budget)
        return rows

    def _admit_rows(self, rows: list[Row], budget: int) -> None:
        """Admit waiting sequences, and add their rows."""
        prefills = Prefills(self.running)
        admitted: list[int] = []
        for sequence in self._in_order():
            if budget <= 0 or len(self.running) >= self.limits.max_running:
                break
            if self._is_in_flight(sequence, prefills):
                continue
            if not self._admit(sequence, prefills.owed_slots):
                break
            budget -= self._add_rows(rows, sequence, budget)
            prefills.add(sequence)
            admitted.append(sequence.id)
        if admitted:
            admitted.sort()
            self.waiting = [sequence for sequence in self.waiting if sequence.row < 0]
            for sequence in self._first_waiting():
                sequence.num_bypassed += len(admitted) - bisect(admitted, sequence.id)

    def _add_rows(self, rows: list[Row], sequence: Sequence, budget: int) -> int:
        self._suspect = sequence
        return self.rows.add(rows, sequence, budget)

    # -- admission --

    def _in_order(self) -> list[Sequence]:
        def key(sequence: Sequence) -> tuple[bool, int, int]:
            patient = sequence.num_bypassed < self.limits.max_bypass
            return (patient, -self._peek(sequence) if patient else 0, sequence.id)

        return sorted(self._first_waiting(), key=key)

    def _first_waiting(self) -> list[Sequence]:
        return self.waiting[:_MOST_LOOKED_AT]

    def _peek(self, sequence: Sequence) -> int:
        self._suspect = sequence
        version, matched = sequence.peeked
        if version != self.cache.version:
            matched = self.cache.peek(sequence.keys(sequence.match_limit))
            sequence.peeked = (self.cache.version, matched)
        return matched

    def _is_in_flight(self, sequence: Sequence, prefills: Prefills) -> bool:
        """Whether a running prefill is about to compute more of this prompt than is cached already."""
        matched = self._peek(sequence)
        wanted = matched + self.limits.min_shared_tokens
        if not self.limits.prefix_cache or sequence.match_limit < wanted:
            return False
        return prefills.will_compute(sequence, matched, wanted)

    def _admit(self, sequence: Sequence, owed_slots: int) -> bool:
        """Lock its cached prefix and give it a row, if there is room for the rest of it. `owed_slots`: what running
        prefills still need."""
        match = self._match(sequence, owed_slots)
        if match is None:
            return False
        num_cached = min(len(match.slots), sequence.match_limit)
        self.cache.record_hit(match.node, num_cached, sequence.request.owner)
        self._make_room(min(self.limits.prefill_chunk, sequence.num_tokens - num_cached), sequence)
        self.running.append(sequence)
        sequence.row = self.table.take_row()
        self.table.write(sequence.row, 0, match.slots[:num_cached])
        sequence.node = match.node
        sequence.num_matched = len(match.slots)
        sequence.num_shared = sequence.num_computed = sequence.num_slots = num_cached
        sequence.prefill_end = sequence.num_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = num_cached
            sequence.first_scheduled = time.perf_counter()
        return True

    def _match(self, sequence: Sequence, owed_slots: int) -> Match[RadixNode] | None:
        """Its longest cached prefix, locked, or None if there is no room for the rest.

        The whole prompt is looked up, although its last token must be computed again: looking up less would cut
        that token off into a node of its own. Where memory is short, no more is locked than will be used.
        """
        for length in (sequence.num_tokens, sequence.match_limit):
            match = self.cache.acquire(sequence.keys(length))
            needed = sequence.num_tokens - min(len(match.slots), sequence.match_limit)
            if self.running:
                needed += _DECODE_RESERVE * (len(self.running) + 1) + owed_slots
            if self.pool.num_free + self.cache.num_evictable >= needed:
                return match
            self.cache.release(match.node)
        return None

    def _give_keys(self, sequence: Sequence) -> None:
        sequence.seams = self.cache.seams if sequence.layout.sections else None

    def _find_starved(self) -> Sequence | None:
        """There is no row to compute: who waits for slots that only an unpin can give?"""
        if not self.cache.num_pinned or any(each.awaits_choice for each in self.running):
            return None
        if self.running:
            return None if self.pool.num_free + self.cache.num_evictable else self.running[0]
        return next(iter(self._in_order()), None)  # all that no pin holds was to be had, and was not enough

    # -- memory --

    def _make_room(self, count: int, sequence: Sequence | None) -> bool:
        return make_room(self.pool, self.cache, count, sequence)

    def _must_yield(self) -> bool:
        """Where no row fits: whether partial prefills hold all the memory, so that one of them must be put back. One
        that is alone must if the node that it holds has grown past what it took of it: it holds all of that."""
        if all(sequence.is_decoding for sequence in self.running):
            return False
        first = self.running[0]
        return len(self.running) > 1 or (first.node is not None and first.node.end > first.num_shared)

    def _preempt(self, sequence: Sequence) -> None:
        """Put a running sequence back in the queue. Its KV stays cached as long as memory allows."""
        assert sequence.num_pending == 0, "a sequence cannot be put back before its tokens are known"
        self._preempted = True
        self.running.remove(sequence)
        self._leave(sequence, keep=True)
        sequence.num_preemptions += 1
        sequence.num_bypassed = self.limits.max_bypass  # it has waited its turn already
        sequence.peeked = (-1, 0)  # it has more tokens than when it was looked up
        self.waiting.insert(0, sequence)

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        """Give up row, slots and lock."""
        if keep and self.limits.prefix_cache:
            self._free_slots(sequence, sequence.num_computed)
            self._share(sequence)
        self._free_slots(sequence, sequence.num_shared)
        if sequence.node is not None:
            self.cache.release(sequence.node)
        self.table.give_row(sequence.row)
        sequence.node = sequence.tail = None
        sequence.row = -1
        sequence.num_shared = sequence.num_computed = sequence.num_slots = 0

    def _free_slots(self, sequence: Sequence, start: int) -> None:
        self.pool.free(self.table.read(sequence.row, start, sequence.num_slots))
        sequence.num_slots = start

    def _share(self, sequence: Sequence) -> None:
        """Hand the computed part over to the tree.

        Slots before and after, by position (existing = what the tree had by now):
            [0, num_shared)          the tree's, locked by us      -> the same
            [num_shared, existing)   ours; another was faster      -> ours are freed, we use the tree's
            [existing, num_computed) ours                          -> the tree's, locked by us
        """
        if not self.limits.prefix_cache or sequence.num_computed <= sequence.num_shared:
            return
        if sequence.num_computed < sequence.num_matched:
            return  # the tree has all this and more: it will be taken from there in one go, and no node is cut
        slots = self.table.read(sequence.row, 0, sequence.num_computed)
        node, num_existing, existing_slots = self.cache.insert(
            sequence.keys(sequence.num_computed),
            slots,
            start=sequence.num_shared,
            tail=sequence.tail,
            owner=sequence.request.owner,
        )
        if num_existing > sequence.num_shared:
            self.pool.free(slots[sequence.num_shared : num_existing])
            self.table.write(sequence.row, sequence.num_shared, existing_slots)
        if num_existing < sequence.num_computed:
            sequence.tail = node
        self.cache.lock(node)
        if sequence.node is not None:
            self.cache.release(sequence.node)
        sequence.node = node
        sequence.num_shared = sequence.num_computed
