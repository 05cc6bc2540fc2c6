"""`Sampler` for a GPU: all that the rows bring goes up in one copy, a few kernels choose, and nothing is waited for.

It chooses as `Sampler` defines it; only a draw that lies within rounding of a boundary may fall on its other side.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmnb.kernels import choice_plan as plan
from lmnb.kernels.choice_plan import PENALTY_FIELDS, ChoicePlan, choice_fields
from lmnb.kernels.choose_triton import ChoiceSpace, choose
from lmnb.kernels.log_sums import log_sums
from lmnb.runtime.device_batch import Field, Ints, Staging, views
from lmnb.runtime.logprobs import pack_scores
from lmnb.runtime.pending_tokens import PendingTokens, rows_asking
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.sampler_row import SamplerRow


class DeviceSampler:
    """Chooses one token a row, and keeps it in `last_tokens` as well. Used by the engine's thread only.

    `num_tokens`: ids from there on are padding of the model's vocabulary, never chosen.
    """

    def __init__(self, num_tokens: int, last_tokens: Tensor, staging: Staging) -> None:
        self._num_tokens, self._last_tokens, self._staging = num_tokens, last_tokens, staging
        self._space = ChoiceSpace(num_tokens, last_tokens.device)
        self._group: _Group | None = None

    @torch.inference_mode()
    def launch(
        self, logits: Tensor, sources: Sequence[int], places: Sequence[int], rows: Sequence[SamplerRow]
    ) -> PendingTokens:
        """Choose for each of `rows` from its row `sources[i]` of `logits` [L, V], and keep the id at `places[i]`."""
        choices, given = self.plan(sources, places, rows)
        packed = choose(logits, choices, self._space, self._last_tokens)
        return self._pending(packed, logits, rows, given)

    def plan(
        self, sources: Sequence[int], places: Sequence[int], rows: Sequence[SamplerRow]
    ) -> tuple[ChoicePlan, dict[str, Tensor]]:
        """What the kernels need to know, on the device; and everything that went there, by name."""
        group = self._group_of(rows)
        fields, masks = group.fields.copy(), group.masks.copy()
        fields[:, plan.SOURCE], fields[:, plan.PLACE] = sources, places
        if group.drawing:
            uniforms = [rows[i].uniforms[rows[i].step] for i in group.drawing]
            fields.view(np.float64)[group.drawing, plan.UNIFORM // 2] = uniforms
        for i, row in enumerate(rows):
            if row.bitmask is not None:
                fields[i, plan.ALLOWED] = masks.add(id(row.bitmask), row.bitmask)
        for i in group.with_minimum:
            if rows[i].bans_end:
                fields[i, plan.ENDS] = masks.add_ban(rows[i].ends)
        penalties, tokens, reductions = _penalties(group.penalised, fields, sources, rows)
        asking, masked = _asking(group.asking, sources, fields)
        arrays = {
            "rows": fields, "penalties": penalties, "tokens": tokens, "reductions": reductions.view(np.int32),
            "asking": asking, "masked": masked,
        }  # fmt: skip
        shapes = [Field(name, array.shape) for name, array in arrays.items()]
        shapes.append(Field("masks", (len(masks.arrays), masks.num_words)))
        given = views(self._staging.upload([*arrays.values(), *masks.arrays]), shapes)
        choices = ChoicePlan(
            rows=given["rows"],
            masks=given["masks"],
            penalties=given["penalties"],
            tokens=given["tokens"],
            reductions=given["reductions"].view(torch.float32),
            draws=bool(group.drawing),
            searches=group.searches,
        )
        return choices, given

    @torch.inference_mode()
    def report(
        self, packed: Tensor, logits: Tensor, sources: Sequence[int], rows: Sequence[SamplerRow]
    ) -> PendingTokens:
        """What rows that take the likeliest token as it is have chosen already; `packed` as of `greedy`."""
        if not rows_asking(rows):
            return PendingTokens(packed, rows)
        asking, masked = _asking(rows_asking(rows), sources, None)
        fields = [Field("asking", asking.shape), Field("masked", masked.shape)]
        return self._pending(packed, logits, rows, views(self._staging.upload([asking, masked]), fields))

    def _group_of(self, rows: Sequence[SamplerRow]) -> _Group:
        """What is known of these rows from step to step; mostly they are those of the last one."""
        if self._group is None or self._group.rows != rows:
            self._group = _Group(list(rows), self._num_tokens)
        return self._group

    def _pending(
        self, packed: Tensor, logits: Tensor, rows: Sequence[SamplerRow], given: dict[str, Tensor]
    ) -> PendingTokens:
        """With the log-probabilities that rows ask for, `given` which and from where."""
        if not len(given["asking"]):
            return PendingTokens(packed, rows)
        numbers, sources = given["asking"].long().unbind(1)
        allowed = torch.full((len(sources), 2), torch.nan, device=logits.device)
        if len(given["masked"]):
            where, masks = given["masked"].long().unbind(1)
            allowed[where] = log_sums(logits, sources[where], given["masks"], masks, self._num_tokens)
        num_top = max(row.num_logprobs for row in rows)
        return PendingTokens(packed, rows, pack_scores(logits, sources, packed[0][numbers].long(), num_top, allowed))


class _Group:
    """What stays the same while some rows are chosen for, step after step."""

    def __init__(self, rows: list[SamplerRow], num_tokens: int) -> None:
        self.rows = rows
        self.masks = _Masks(num_tokens)
        self.fields = np.concatenate([_constants(row.params, num_tokens) for row in rows]).reshape(len(rows), -1)
        for i, row in enumerate(rows):
            if len(row.suppressed):
                self.fields[i, plan.SUPPRESSED] = self.masks.add_ban(row.suppressed)
        self.drawing = [i for i, row in enumerate(rows) if not row.is_greedy]
        self.with_minimum = [i for i, row in enumerate(rows) if row.params.min_new_tokens and len(row.ends)]
        self.penalised = [i for i, row in enumerate(rows) if row.has_penalties]
        self.asking = rows_asking(rows)
        filters = (self.fields[:, plan.TOP_K] < plan.NO_TOP_K) | (self.fields.view(np.float64)[:, plan.TOP_P // 2] < 1)
        self.searches = bool(filters[self.drawing].any())


def _constants(params: SamplingParams, num_tokens: int) -> Ints:
    return choice_fields(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        num_tokens=num_tokens,
    )


def _penalties(
    penalised: list[int], fields: Ints, sources: Sequence[int], rows: Sequence[SamplerRow]
) -> tuple[Ints, Ints, NDArray[np.float32]]:
    """Of the rows that have generated what penalties act on: their numbers, the tokens, and what each loses."""
    having = [i for i in penalised if len(rows[i].counts)]
    penalties = np.zeros((len(having), PENALTY_FIELDS), dtype=np.int32)
    tokens, reductions, start = [np.empty(0, np.int32)], [np.empty(0, np.float32)], 0
    for number, i in enumerate(having):
        params, counts = rows[i].params, rows[i].counts
        fields[i, plan.PENALISED] = number
        penalties[number, :3] = sources[i], start, len(counts)
        penalties.view(np.float32)[number, 3:5] = params.repetition_penalty, params.presence_penalty
        tokens.append(counts.tokens)
        reductions.append(np.float32(params.frequency_penalty) * counts.counts.astype(np.float32))
        start += len(counts)
    return penalties, np.concatenate(tokens), np.concatenate(reductions)


class _Masks:
    """The different masks of a step, each once: int32 words of one length."""

    def __init__(self, num_tokens: int) -> None:
        self.arrays: list[Ints] = []
        self.num_words = -(-num_tokens // 128) * 4  # as arrays are aligned in a buffer
        self._num_tokens = num_tokens
        self._numbers: dict[int | bytes, int] = {}

    def copy(self) -> _Masks:
        """One to which others can be added."""
        made = _Masks(self._num_tokens)
        made.arrays, made._numbers = self.arrays.copy(), self._numbers.copy()
        return made

    def add(self, key: int | bytes, words: Ints) -> int:
        """The number of a mask, by what tells it from others. What is beyond its words is forbidden."""
        number = self._numbers.setdefault(key, len(self.arrays))
        if number == len(self.arrays):
            if len(words) < self.num_words:
                words = np.concatenate((words, np.zeros(self.num_words - len(words), dtype=np.int32)))
            self.arrays.append(words[: self.num_words])
        return number

    def add_ban(self, token_ids: np.ndarray) -> int:
        """The number of a mask that forbids just these."""
        key = token_ids.tobytes()
        return self.add(key, _all_but(key, self._num_tokens))


@functools.lru_cache(maxsize=256)
def _all_but(token_ids: bytes, num_tokens: int) -> Ints:
    """A mask of all tokens but some, given as int64. Those that do not exist are passed over."""
    allowed = np.ones(-(-num_tokens // 128) * 128, dtype=bool)
    banned = np.frombuffer(token_ids, dtype=np.int64)
    allowed[banned[(banned >= 0) & (banned < num_tokens)]] = False
    return np.packbits(allowed, bitorder="little").view(np.int32)


def _asking(asking: list[int], sources: Sequence[int], fields: Ints | None) -> tuple[Ints, Ints]:
    """Rows that want log-probabilities: (row, row of the logits); and those of them with a mask: (number, mask)."""
    pairs = [(i, sources[i]) for i in asking]
    masked = [] if fields is None else [(k, fields[i, plan.ALLOWED]) for k, i in enumerate(asking)]
    return (
        np.array(pairs, dtype=np.int32).reshape(-1, 2),
        np.array([each for each in masked if each[1] >= 0], dtype=np.int32).reshape(-1, 2),
    )
