"""Which keys the new tokens of a decoding step read together: the radix tree's nodes, cut into the kernels' items.

Requests that share a node read its keys once, all of them; what is left of each is its own. Both are split into
chunks, so that every multiprocessor has work. Numbers only: no tensors, no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmnb.kernels.device_plan import ITEM_FIELDS, NARROW_ROWS, OPEN_END, WIDE_ROWS
from lmnb.runtime.radix_node import RadixNode
from lmnb.runtime.rows import Row, numbers_within, of_tokens
from lmnb.runtime.sequence import Sequence

Ints = NDArray[np.int32]

# A shared read pays once it saves so many reads of a key: it costs one more partial result for each request.
MIN_SAVED_KEYS = 512
_BLOCK = 64  # keys that a kernel reads at a time: chunks are multiples of it
_MIN_WIDE_CHUNK = 256
_NARROW_PROGRAMS_PER_SM, _WIDE_PROGRAMS_PER_SM = 4, 2
# Below so many keys an item's program waits more than it reads: smaller blocks then let more of them wait at once.
_SHORT_ITEM = 192


class Segment(NamedTuple):
    """Keys [start, end) that the requests [first, first + num_requests) share."""

    first: int
    num_requests: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DecodeItems:
    """`order[i]`: which of the given rows comes i-th, so that those under one node are neighbours. All that follows
    counts their tokens, in that order."""

    order: list[int]
    narrow: Ints  # [N, ITEM_FIELDS]
    wide: Ints  # [W, ITEM_FIELDS]
    num_parts: Ints  # [n]
    is_short: bool  # the narrow items have few keys each


class DecodePlanner:
    """Plans steps for one model's heads on one device. Plans are kept while the same requests go on."""

    def __init__(self, num_kv_heads: int, heads_per_kv: int, num_processors: int, *, tree: bool = True) -> None:
        self._group = heads_per_kv
        self._narrow_items = max(1, num_processors * _NARROW_PROGRAMS_PER_SM // num_kv_heads)
        self._wide_items = max(1, num_processors * _WIDE_PROGRAMS_PER_SM // num_kv_heads)
        self._tree = tree
        self._key: list[tuple[int, int, int, int]] = []
        self._lens = np.zeros(0, dtype=np.int64)  # in the order of the key
        self._items: DecodeItems | None = None
        self._age = 0

    @property
    def max_splits(self) -> int:
        """How many narrow items there may be beyond one for each request."""
        return self._narrow_items + 1

    def plan(self, rows: list[Row], max_parts: int) -> DecodeItems:
        """Items for the rows' tokens, each of which reads for itself. None gets more than `max_parts` of them."""
        lens = _lengths(rows)
        key = [(row.sequence.id, row.sequence.num_shared, row.place, row.num_tokens) for row in rows]
        self._age += 1
        is_old = self._age > 64  # requests' own parts have grown
        if self._items is None or is_old or key != self._key or bool((lens < self._lens).any()):
            self._key, self._lens, self._age = key, lens, 0
            self._items = self._make(rows, lens, max_parts)
        return self._items

    def _make(self, rows: list[Row], lens: NDArray[np.int64], max_parts: int) -> DecodeItems:
        order = list(range(len(rows)))
        segments: list[Segment] = []
        tails = np.zeros(len(lens), dtype=np.int64)
        if self._tree and len(lens) > 1:
            order, segments, tails = share_keys(rows)
            rows = [rows[i] for i in order]
            lens = _lengths(rows)
        places = of_tokens([row.place for row in rows], [row.num_tokens for row in rows], rising=False)
        for coarseness in range(64):
            items = self._cut(segments, tails, lens, places, 1 << coarseness)
            if int(items[2].max()) <= max_parts:
                own_keys = int((lens - tails).sum())
                many = len(items[0]) > self._narrow_items
                return DecodeItems(order, *items, is_short=many and own_keys < _SHORT_ITEM * len(items[0]))
            if coarseness >= 30:
                segments, tails = [], np.zeros_like(tails)  # a path of too many nodes
        raise AssertionError("one part a request always fits")

    def _cut(
        self, segments: list[Segment], tails: NDArray[np.int64], lens: NDArray[np.int64], rows: NDArray[np.int64],
        coarseness: int,
    ) -> tuple[Ints, Ints, Ints]:  # fmt: skip
        """Items in chunks; `coarseness` multiplies the chunks' length."""
        wide = [s for s in segments if s.num_requests * self._group > NARROW_ROWS]
        few = [s for s in segments if s.num_requests * self._group <= NARROW_ROWS]
        per_item = WIDE_ROWS // self._group
        tiles_of = [-(-s.num_requests // per_item) for s in wide]
        work = sum(tiles * (s.end - s.start) for s, tiles in zip(wide, tiles_of, strict=True))
        wide_chunk = max(_MIN_WIDE_CHUNK, _up(-(-work // self._wide_items))) * coarseness
        own_keys = int((lens - tails).sum()) + sum(s.end - s.start for s in few)
        narrow_chunk = _up(-(-own_keys // self._narrow_items)) * coarseness

        num_parts = np.zeros(len(lens), dtype=np.int64)
        wide_items: list[tuple[int, ...]] = []
        narrow_items: list[tuple[int, ...]] = []
        for segment in segments:  # parents before children: a request's parts are numbered along its path
            first, count, start, end = segment
            is_wide = count * self._group > NARROW_ROWS
            items, chunk, width = (wide_items, wide_chunk, per_item) if is_wide else (narrow_items, narrow_chunk, count)
            part = int(num_parts[first])
            for begin in range(start, end, chunk):
                stop = min(begin + chunk, end)
                for request in range(first, first + count, width):
                    size = min(width, first + count - request)
                    items.append((request, size, int(rows[request]), begin, stop, part))
                part += 1
            num_parts[first : first + count] = part
        own = self._tail_items(tails, lens, rows, num_parts, narrow_chunk)
        num_parts += -(-(lens - tails) // narrow_chunk)
        shared = np.array(narrow_items, dtype=np.int32).reshape(-1, ITEM_FIELDS)
        return (
            np.concatenate([shared, own]),
            np.array(wide_items, dtype=np.int32).reshape(-1, ITEM_FIELDS),
            num_parts.astype(np.int32),
        )

    def _tail_items(
        self, tails: NDArray[np.int64], lens: NDArray[np.int64], rows: NDArray[np.int64], parts: NDArray[np.int64],
        chunk: int,
    ) -> Ints:  # fmt: skip
        """Each request's own keys, from `tails` on; the last chunk grows with the request."""
        chunks = -(-(lens - tails) // chunk)
        request = np.repeat(np.arange(len(lens)), chunks)
        number = numbers_within(chunks)
        start = tails[request] + number * chunk
        end = np.where(number == chunks[request] - 1, OPEN_END, start + chunk)
        columns = (request, np.ones_like(request), rows[request], start, end, parts[request] + number)
        return np.stack(columns, axis=1).astype(np.int32)


def share_keys(rows: list[Row]) -> tuple[list[int], list[Segment], NDArray[np.int64]]:
    """The order of the rows that brings those under one node together, the segments worth reading once (parents first;
    by tokens in that order), and where each token's own part begins."""
    numbers: dict[int, list[int]] = {}  # of each sequence's rows
    for number, row in enumerate(rows):
        numbers.setdefault(row.sequence.id, []).append(number)
    groups = [(_path(rows[each[0]].sequence), each) for each in numbers.values()]
    groups.sort(key=lambda group: [node.id for node in group[0]])
    paths = [path for path, _ in groups]
    order = [number for _, each in groups for number in each]
    shared = [rows[each[0]].sequence.num_shared for _, each in groups]
    counts = [row.num_tokens for row in rows]
    sizes = [sum([counts[number] for number in each]) for _, each in groups]
    firsts = list(accumulate(sizes, initial=0))  # where a group's tokens begin
    segments: list[Segment] = []
    tails = np.zeros(firsts[-1], dtype=np.int64)
    stack = [(0, len(groups), 0, 0)]  # groups [low, high) agree on `depth` nodes; keys before `start` are covered
    while stack:
        low, high, depth, start = stack.pop()
        i = low
        while i < high:
            node = paths[i][depth] if len(paths[i]) > depth else None
            j = i + 1
            while node is not None and j < high and len(paths[j]) > depth and paths[j][depth] is node:
                j += 1
            first, count = firsts[i], firsts[j] - firsts[i]
            if node is None or count == 1:
                tails[first : first + count] = start
            else:
                # A node may have grown past what a request took from it.
                end = min(node.end, *shared[i:j])
                worth = (count - 1) * (end - start) >= MIN_SAVED_KEYS
                if worth:
                    segments.append(Segment(first, count, start, end))
                stack.append((i, j, depth + 1, end if worth else start))
            i = j
    segments.sort(key=lambda s: s.start)
    return order, segments, tails


def _lengths(rows: list[Row]) -> NDArray[np.int64]:
    """How many keys each token of `rows` sees, itself included."""
    return of_tokens([row.column + 1 for row in rows], [row.num_tokens for row in rows])


def _path(sequence: Sequence) -> list[RadixNode]:
    """The nodes that hold the sequence's shared part, from the root's child down."""
    path: list[RadixNode] = []
    node = sequence.node
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]


def _up(keys: int) -> int:
    """To whole blocks, at least one."""
    return max(_BLOCK, -(-keys // _BLOCK) * _BLOCK)
