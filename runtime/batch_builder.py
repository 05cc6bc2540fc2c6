"""Turns the scheduler's rows into one `ForwardBatch`, and tells which logits belong to whom."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lmnb.runtime.batch import ForwardBatch
from lmnb.runtime.rows import Row
from lmnb.runtime.scheduler import Scheduler


class PromptSpan(NamedTuple):
    """Logits rows [start, stop) predict the sequence's tokens from `position` on."""

    row: Row
    position: int
    start: int
    stop: int


class BuiltBatch(NamedTuple):
    """What a step's logits mean: `sampled[i]`'s next token comes from logits row `sampled_rows[i]`.

    `wanted`: the tokens of the step whose logits are needed, in order. `ended`: rows that complete a request which
    wants no more token.
    """

    rows: list[Row]
    wanted: list[int]
    sampled: list[Row]
    sampled_rows: list[int]
    prompt_spans: list[PromptSpan]
    ended: list[Row]

    @property
    def num_logits(self) -> int:
        return len(self.wanted)


def describe(rows: list[Row]) -> BuiltBatch:
    """Which logits the rows want, and what for."""
    built = BuiltBatch(rows, [], [], [], [], [])
    wanted = built.wanted
    token = 0
    for row in rows:
        sequence, start, end = row.sequence, row.start, row.end
        base = token - start  # flat index of the sequence's token 0
        token += end - start
        for first, last in _known_logits(row):
            if first < last:
                built.prompt_spans.append(PromptSpan(row, first + 1, len(wanted), len(wanted) + last - first))
                wanted.extend(range(base + first, base + last))
        if row.is_last and sequence.request.sampling.max_new_tokens > 0 and not sequence.output.finished:
            built.sampled.append(row)
            built.sampled_rows.append(len(wanted))
            wanted.append(base + end - 1)
        elif row.is_last:
            built.ended.append(row)
    return built


def build_batch(built: BuiltBatch, scheduler: Scheduler, device: torch.device, *, strict: bool = False) -> ForwardBatch:
    """The tensors of a step. Its rows come one-token rows first, as `Scheduler.schedule` returns them."""
    table, rows = scheduler.table, built.rows
    query_starts = [0]
    ids, positions, out_slots = [], [], []
    for row in rows:
        ids.append(row.sequence.tokens[row.start : row.end])
        positions.append(row.sequence.positions(row.start, row.end))
        out_slots.append(table.read(row.sequence.row, row.start, row.end))
        query_starts.append(query_starts[-1] + row.end - row.start)
    kv_lens = [row.kv_len for row in rows]
    num_decode = sum(row.is_single for row in rows)

    def upload(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return ForwardBatch(
        input_ids=upload(np.concatenate(ids).astype(np.int64)),
        positions=upload(np.concatenate(positions)),
        out_slots=upload(np.concatenate(out_slots)),
        slot_table=upload(table.gather([row.place for row in rows], max(kv_lens))),
        query_starts=query_starts,
        kv_lens=kv_lens,
        logits_rows=upload(np.array(built.wanted, dtype=np.int64)),
        num_decode=num_decode,
        shared_len=0 if strict else scheduler.shared_length(rows[:num_decode]),
        strict=strict,
    )


def _known_logits(row: Row) -> tuple[tuple[int, int], tuple[int, int]]:
    """Positions [first, last) of the row whose logits score tokens that are known already: the prompt's next ones,
    and those that a grammar forced."""
    sequence = row.sequence
    start, unscored = sequence.request.logprob_start, sequence.unscored
    prompt = (0, 0) if start is None else (max(row.start, start - 1), min(row.end, sequence.num_prompt - 1))
    forced = (0, 0) if unscored is None else (max(row.start, unscored - 1), min(row.end, sequence.num_tokens - 1))
    return prompt, forced
