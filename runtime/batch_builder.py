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

    @property
    def targets(self) -> list[int]:
        tokens: list[int] = self.row.sequence.tokens[self.position : self.position + self.stop - self.start].tolist()
        return tokens

    @property
    def num_top(self) -> int:
        """How many of the likeliest tokens to report beside each."""
        return self.row.sequence.request.sampling.top_logprobs_num


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

    @property
    def must_wait(self) -> bool:
        """Whether a choice depends on a token that is on its way."""
        return any(row.sequence.num_pending and row.sequence.choice_needs_tokens for row in self.sampled)

    def with_all_logits(self) -> BuiltBatch:
        """The same step, where there are logits of all its tokens, wanted or not."""
        spans = [
            span._replace(start=self.wanted[span.start], stop=self.wanted[span.start] + span.stop - span.start)
            for span in self.prompt_spans
        ]
        return self._replace(
            wanted=list(range(sum(row.end - row.start for row in self.rows))),
            sampled_rows=[self.wanted[place] for place in self.sampled_rows],
            prompt_spans=spans,
        )

    def with_known_tokens(self) -> BuiltBatch:
        """The same step, whose rows have been computed, now that no token is on its way any more. The logits of a
        sequence that has ended, or whose last tokens were replaced, mean nothing now; those before a token that its
        grammar has forced tell how likely that one is."""
        sampled: list[Row] = []
        sampled_rows: list[int] = []
        prompt_spans = [*self.prompt_spans]
        for row, place in zip(self.sampled, self.sampled_rows, strict=True):
            sequence = row.sequence
            if sequence.num_computed != row.end:
                continue
            if row.leads_on:
                sampled.append(row)
                sampled_rows.append(place)
            elif sequence.unscored == row.end:
                prompt_spans.append(PromptSpan(row, row.end, place, place + 1))
        return self._replace(sampled=sampled, sampled_rows=sampled_rows, prompt_spans=prompt_spans)


def describe(rows: list[Row]) -> BuiltBatch:
    """Which logits the rows want, and what for."""
    built = BuiltBatch(rows, [], [], [], [], [])
    wanted = built.wanted
    token = 0
    for row in rows:
        sequence, start, end = row.sequence, row.start, row.end
        base = token - start  # flat index of the sequence's token 0
        token += end - start
        scores_known = sequence.request.logprob_start is not None or sequence.unscored is not None
        for first, last in _known_logits(row) if scores_known else ():
            if first < last:
                built.prompt_spans.append(PromptSpan(row, first + 1, len(wanted), len(wanted) + last - first))
                wanted.extend(range(base + first, base + last))
        if row.leads_on:
            built.sampled.append(row)
            built.sampled_rows.append(len(wanted))
            wanted.append(base + end - 1)
        elif row.is_last:
            built.ended.append(row)
    return built


def build_batch(built: BuiltBatch, scheduler: Scheduler, device: torch.device, *, strict: bool = False) -> ForwardBatch:
    """The tensors of a step. Its rows come one-token rows first, as `Scheduler.schedule` returns them."""
    table, rows = scheduler.table, built.rows
    num_decode = sum(row.is_single for row in rows)
    singles = rows[:num_decode]
    starts = [row.start for row in singles]
    query_starts = list(range(num_decode + 1))
    ids = [np.array([row.sequence.token_at(row.start) for row in singles], dtype=np.int64)]
    is_plain = not any(row.sequence.layout.sections for row in singles)
    places = starts if is_plain else [row.sequence.layout.position(row.start) for row in singles]
    positions = [np.array(places, dtype=np.int64)]
    out_slots = [table.read_column([row.place for row in singles], starts)]
    for row in rows[num_decode:]:
        ids.append(row.sequence.tokens[row.start : row.end].astype(np.int64))
        positions.append(row.sequence.positions(row.start, row.end))
        out_slots.append(table.read(row.sequence.row, row.start, row.end))
        query_starts.append(query_starts[-1] + row.end - row.start)
    kv_lens = [row.kv_len for row in rows]

    def upload(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return ForwardBatch(
        input_ids=upload(np.concatenate(ids)),
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
