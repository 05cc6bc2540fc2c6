"""Runs steps on a CUDA GPU: a slot table that stays there, Triton attention plans, and graphs for decoding.

A step of decoding requests only is padded to one of a ladder of sizes and replayed as a CUDA graph. A size that is new
borrows a larger one's for a few steps; then, or where there is none, a step runs operation by operation, and its graph
is captured meanwhile. Everything is queued on one stream and nothing is waited for, so memory that a later step reuses
is never overwritten too early.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmnb.kernels.device_plan import ITEM_FIELDS, TILE_FIELDS, DecodePart, DevicePlan
from lmnb.kernels.greedy_triton import greedy
from lmnb.kernels.slot_table_triton import begin_step, copy_rows
from lmnb.runtime.batch import ForwardBatch, Model
from lmnb.runtime.batch_builder import BuiltBatch, describe
from lmnb.runtime.config import EngineLimits
from lmnb.runtime.decode_tree import DecodeItems, DecodePlanner, Ints
from lmnb.runtime.device_batch import (
    Field,
    Staging,
    extend_tiles,
    moved_slots,
    one_token_tiles,
    space,
    strict_tiles,
    token_columns,
    views,
)
from lmnb.runtime.device_sampler import DeviceSampler
from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.pending_tokens import PendingTokens
from lmnb.runtime.rehearsal import rehearse
from lmnb.runtime.rows import MAX_BRANCH_ROWS, Row
from lmnb.runtime.sampler import Sampler
from lmnb.runtime.scheduler import Scheduler
from lmnb.runtime.step_graphs import GraphKey, StepGraphs

# Batch sizes with a graph of their own: padding costs little between them, and up to 8 nothing but for a single row.
_LADDER = (1, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)
_SMALL = (8, 16, 32, 64, 128, 256, 384, 512)  # of these, those for steps whose number of tokens varies: see `_small`
_MOST_SMALL_READS = 1 << 16  # keys: of Llama 3 8B 0.27 GB a layer, which is 2 ms a step on the fastest cards
_WIDE_ITEMS = (0, 32, 128, 512, 2048)  # room for wide items: a graph launches as many programs as it has room for
_COLUMNS = ("ids", "positions", "columns", "places", "slots")  # of each token: see `token_columns`
_MAX_PARTS, _MIN_PARTS, _PART_ROWS = 72, 12, 2304


# One graph is captured at a time, on one stream for all engines: libraries keep memory for every stream they see.
_CAPTURING = threading.Lock()


@functools.cache
def _capture_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured decode step: its inputs are copied into the executor's own buffer, its outputs lie here."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor  # [B, V]
    chosen: Tensor  # see `greedy`


class CudaExecutor:
    """Implements `Executor`. Used by the engine's thread only."""

    def __init__(
        self, model: Model, pool: KVPool, scheduler: Scheduler, sampler: Sampler, limits: EngineLimits
    ) -> None:
        layout = model.kv_layout
        self._model, self._pool, self._scheduler = model, pool, scheduler
        self._limits, self._device = limits, layout.device
        self._group = model.num_heads // layout.num_kv_heads
        self._num_tokens = model.vocab_size if sampler.num_tokens is None else sampler.num_tokens
        self._spare_row = limits.max_running + MAX_BRANCH_ROWS
        rows, columns = self._spare_row + 1, min(limits.pool_tokens, model.context_tokens) + 1
        # The last row is nobody's: padding belongs there.
        self._table = torch.zeros(rows, columns, dtype=torch.int32, device=self._device)
        self._last_tokens = torch.zeros(rows, dtype=torch.int32, device=self._device)
        scheduler.table.moved = []
        self._planner = DecodePlanner(
            layout.num_kv_heads, self._group, _num_processors(self._device), tree=limits.tree_attention
        )
        self._sizes = [size for size in _LADDER if size < limits.max_running] + [limits.max_running]
        self._small_sizes = [size for size in self._sizes if size in _SMALL]
        places = max(size * self._parts(size) for size in self._sizes) * model.num_heads
        self._partial_out = torch.empty(places * layout.head_dim, dtype=layout.dtype, device=self._device)
        self._partial_lse = torch.empty(places, dtype=torch.float32, device=self._device)
        self._staging = Staging(self._device)
        self._chooser = DeviceSampler(self._num_tokens, self._last_tokens, self._staging)
        self._graphs: StepGraphs[_Graph] = StepGraphs()
        self._graph_pool: Any = None
        self._side_stream: Any = None
        if self._device.type == "cuda":
            self._graph_pool = torch.cuda.graph_pool_handle()
            self._side_stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        largest = self._decode_fields(self._sizes[-1], _WIDE_ITEMS[-1])
        self._inputs = torch.zeros(space(largest), dtype=torch.int32, device=self._device)
        self._greedy: Tensor | None = None  # what the last decode step chose by itself
        self._forward_ends: Any = torch.cuda.Event() if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self._device.type == "cuda":
            # What lives now (all of torch, for one) is left out of later garbage collections: going through it
            # would hold up a step for 0.1 to 0.2 seconds every few thousand tokens. Garbage is not to live on with it.
            gc.collect()
            gc.freeze()

    # -- Executor --

    def run(self, rows: list[Row]) -> tuple[BuiltBatch, Tensor]:
        self._greedy = None
        self._sync_table()
        built, logits = self._small(rows) or self._any(rows)
        if self._forward_ends is not None:
            self._forward_ends.record()
        return built, logits

    @property
    def is_computing(self) -> bool:
        return self._forward_ends is not None and not self._forward_ends.query()

    def choose(self, built: BuiltBatch, logits: Tensor) -> PendingTokens | None:
        if not built.sampled:
            return None
        draws = [row.sequence.draw for row in built.sampled]
        is_whole = len(built.sampled_rows) == len(logits)
        if is_whole and self._greedy is not None and all(draw.is_plain for draw in draws):
            return self._chooser.report(self._greedy, logits, built.sampled_rows, draws)
        places = [row.sequence.row for row in built.sampled]
        return self._chooser.launch(logits, built.sampled_rows, places, draws)

    def rehearsal(self) -> Callable[[], None]:
        sizes = (self._model.vocab_size, self._num_tokens, self._table.shape[1])
        return partial(rehearse, self._device, self._model.kv_layout.dtype, *sizes)

    def close(self) -> None:
        if self._device.type == "cuda":
            gc.unfreeze()
            torch.cuda.synchronize(self._device)
        self._graphs.clear()
        self._greedy = None
        del self._chooser, self._model
        for name in ("_table", "_last_tokens", "_partial_out", "_partial_lse", "_inputs"):
            setattr(self, name, torch.empty(0, dtype=torch.int32))

    # -- what is computed how --

    def _any(self, rows: list[Row]) -> tuple[BuiltBatch, Tensor]:
        num_decode = sum(row.is_single for row in rows)
        items = None
        size = self._fit(num_decode) if num_decode else 0
        if num_decode and not self._limits.deterministic:
            items = self._planner.plan(rows[:num_decode], self._parts(size))
            rows = [rows[i] for i in items.order] + rows[num_decode:]
        built = describe(rows)
        everything = built.num_logits == len(rows) == num_decode and not built.prompt_spans
        if everything and (items is None or self._has_room(items, size)):
            return built, self._decode(rows, items, size)
        return built, self._mixed(rows, num_decode, items, built)

    def _small(self, rows: list[Row]) -> tuple[BuiltBatch, Tensor] | None:
        """A step of few tokens, some rows of which have several (a short prompt, forced text): each token decodes for
        itself, which takes one replay of a graph instead of a launch for each operation. None if that does not do."""
        if not self._is_small(rows):
            return None
        size = next(size for size in self._small_sizes if size >= sum(row.num_tokens for row in rows))
        items = self._planner.plan(rows, self._parts(size))
        if not self._has_room(items, size):
            return None
        rows = [rows[i] for i in items.order]
        return describe(rows).with_all_logits(), self._decode(rows, items, size)

    def _is_small(self, rows: list[Row]) -> bool:
        if self._limits.deterministic or not self._limits.cuda_graphs or not self._small_sizes:
            return False
        count = reads = 0
        for row in rows:
            if row.place != row.sequence.row:
                return False  # its keys lie elsewhere than the tree says
            count += row.num_tokens
            # Each token reads all keys of its sequence that no other has.
            reads += row.num_tokens * (row.kv_len - row.sequence.num_shared)
        return len(rows) < count <= self._small_sizes[-1] and reads <= _MOST_SMALL_READS

    # -- each token for itself --

    def _decode(self, rows: list[Row], items: DecodeItems | None, size: int) -> Tensor:
        """Logits of the rows' tokens, padded to `size`. `items`: what attention reads; None in strict mode, where each
        token reads all of its own keys."""
        columns = token_columns(rows, self._scheduler.table)
        count = len(columns[0])
        key, known = self._graphs.find(_graph_key(items, size), partial(self._holds, items))
        arrays = self._strict_arrays(columns, key.size) if items is None else self._decode_arrays(columns, items, key)
        self._staging.upload(arrays, self._inputs)
        if known is None:
            logits, chosen = self._decode_step(key)
            if self._limits.cuda_graphs and self._device.type == "cuda":
                self._graphs.add(key, self._capture(key))
        else:
            known.graph.replay()
            logits, chosen = known.logits, known.chosen
        self._greedy = chosen[:, :count]
        return logits[:count]

    def _holds(self, items: DecodeItems | None, key: GraphKey) -> bool:
        """Whether a step of that many rows has room for the items' partial results: the more rows, the fewer each."""
        return items is None or int(items.num_parts.max()) <= self._parts(key.size)

    def _decode_fields(self, size: int, room: int) -> list[Field]:
        if self._limits.deterministic:
            return [*(Field(name, (size,)) for name in _COLUMNS), Field("strict_tiles", (size, TILE_FIELDS))]
        tokens = [Field(name, (size,)) for name in (*_COLUMNS, "kv_lens", "num_parts")]
        narrow = Field("narrow", (self._narrow_room(size), ITEM_FIELDS))
        return [*tokens, narrow, Field("wide", (room, ITEM_FIELDS))]

    def _decode_arrays(self, columns: list[Ints], items: DecodeItems, key: GraphKey) -> list[Ints]:
        size, room, _ = key
        padding = [0, 0, 0, self._spare_row, self._pool.spare_slot, 1, 0]
        arrays = [*columns, columns[2] + 1, items.num_parts]
        padded = [_pad(array, size, value) for array, value in zip(arrays, padding, strict=True)]
        return [*padded, _pad(items.narrow, self._narrow_room(size), 0), _pad(items.wide, room, 0)]

    def _strict_arrays(self, columns: list[Ints], size: int) -> list[Ints]:
        padding = [0, 0, 0, self._spare_row, self._pool.spare_slot]
        padded = [_pad(array, size, value) for array, value in zip(columns, padding, strict=True)]
        return [*padded, one_token_tiles(padded[2], padded[3])]

    def _decode_step(self, key: GraphKey) -> tuple[Tensor, Tensor]:
        """One decode step on what lies in the input buffer."""
        size, room, is_short = key
        inputs = views(self._inputs, self._decode_fields(size, room))
        if self._limits.deterministic:
            plan = DevicePlan(self._table, None, strict_tiles=inputs["strict_tiles"])
        else:
            plan = DevicePlan(self._table, self._decode_part(size, inputs, is_short))
        batch = self._batch(inputs, plan, None)
        logits = self._model.forward(batch, self._pool.keys, self._pool.values)
        return logits, greedy(logits, self._num_tokens, self._last_tokens, inputs["places"])

    def _capture(self, key: GraphKey) -> _Graph:
        """Record the step that has just run; nothing is computed. The step itself goes on meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with _CAPTURING, torch.cuda.stream(_capture_stream(self._device)):
            graph.capture_begin(pool=self._graph_pool, capture_error_mode="thread_local")
            try:
                logits, chosen = self._decode_step(key)
            finally:
                graph.capture_end()
        return _Graph(graph, logits, chosen)

    # -- prompts, with or without decoding requests --

    def _mixed(self, rows: list[Row], num_decode: int, items: DecodeItems | None, built: BuiltBatch) -> Tensor:
        columns = token_columns(rows, self._scheduler.table)
        if items is None:
            num_decode = 0  # in strict mode a decoding request is a short prompt
        if self._limits.deterministic:
            tiles = {"strict_tiles": strict_tiles(rows, self._group)}
        else:
            narrow, wide = extend_tiles(rows[num_decode:], num_decode, self._group)
            tiles = {"narrow_tiles": narrow, "wide_tiles": wide}
        wanted = np.array(built.wanted, dtype=np.int32)
        fields = [Field(name, (len(columns[0]),)) for name in _COLUMNS]
        arrays = [*columns, *tiles.values(), wanted]
        fields += [Field(name, each.shape) for name, each in tiles.items()]
        fields.append(Field("wanted", (len(wanted),)))
        if items is not None:
            arrays += [columns[2][:num_decode] + 1, items.num_parts, items.narrow, items.wide]
            fields += [
                Field("kv_lens", (num_decode,)),
                Field("num_parts", (num_decode,)),
                Field("narrow", items.narrow.shape),
                Field("wide", items.wide.shape),
            ]
        inputs = views(self._staging.upload(arrays), fields)
        plan = DevicePlan(
            self._table,
            self._decode_part(num_decode, inputs, items.is_short) if items is not None else None,
            **{name: inputs[name] for name, each in tiles.items() if len(each)},
        )
        batch = self._batch(inputs, plan, inputs["wanted"])
        return self._model.forward(batch, self._pool.keys, self._pool.values)

    # -- both --

    def _batch(self, inputs: dict[str, Tensor], plan: DevicePlan, wanted: Tensor | None) -> ForwardBatch:
        """Bring the slot table up to date, and find the ids that only the device knows."""
        ids = torch.empty_like(inputs["ids"])
        begin_step(
            inputs["ids"], inputs["columns"], inputs["slots"], inputs["places"], self._last_tokens, self._table, ids
        )
        return ForwardBatch(
            input_ids=ids,
            positions=inputs["positions"],
            out_slots=inputs["slots"],
            slot_table=self._table,
            query_starts=[],
            kv_lens=[],
            logits_rows=wanted,
            strict=self._limits.deterministic,
            plan=plan,
        )

    def _decode_part(self, num_rows: int, inputs: dict[str, Tensor], is_short: bool) -> DecodePart:
        return DecodePart(
            num_rows=num_rows,
            kv_lens=inputs["kv_lens"],
            num_parts=inputs["num_parts"],
            narrow=inputs["narrow"],
            wide=inputs["wide"],
            partial_out=self._partial_out,
            partial_lse=self._partial_lse,
            max_parts=self._parts(self._fit(num_rows)),
            is_short=is_short,
            side_stream=self._side_stream,
        )

    def _sync_table(self) -> None:
        """Copy prefixes that were found in the cache, or moved, to the device's table."""
        moved = moved_slots(self._scheduler.table)
        if moved is not None:
            slots, spans = moved
            fields = [Field("slots", slots.shape), Field("spans", spans.shape)]
            moves = views(self._staging.upload([slots, spans]), fields)
            copy_rows(moves["slots"], moves["spans"], self._table)

    def _fit(self, count: int) -> int:
        """The smallest size of the ladder that holds `count` rows."""
        return next(size for size in self._sizes if size >= count)

    def _has_room(self, items: DecodeItems, size: int) -> bool:
        """Whether a graph's inputs hold all items: a tree of very many small branchings may have more."""
        return len(items.wide) <= _WIDE_ITEMS[-1] and len(items.narrow) <= self._narrow_room(size)

    def _narrow_room(self, size: int) -> int:
        """One for each request's own keys, one more for each pair of them, and what splitting adds."""
        return size + size // 2 + self._planner.max_splits

    def _parts(self, size: int) -> int:
        """Partial results there is room for, for each of `size` requests."""
        return max(_MIN_PARTS, min(_MAX_PARTS, _PART_ROWS // size))


def _graph_key(items: DecodeItems | None, size: int) -> GraphKey:
    if items is None:
        return GraphKey(size, 0, False)
    return GraphKey(size, next(room for room in _WIDE_ITEMS if room >= len(items.wide)), items.is_short)


def _num_processors(device: torch.device) -> int:
    """Multiprocessors to keep busy. (Triton's interpreter, on a CPU, has one.)"""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _pad(array: Ints, length: int, value: int) -> Ints:
    padded = np.full((length, *array.shape[1:]), value, dtype=np.int32)
    padded[: len(array)] = array
    return padded
