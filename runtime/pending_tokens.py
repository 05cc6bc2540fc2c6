"""What a step has chosen, on its way from the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from lmnb.errors import GenerationError, GrammarError
from lmnb.runtime.logprobs import unpack_scores
from lmnb.runtime.request import TokenLogprob
from lmnb.runtime.sampler_row import SamplerRow


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What one step chose, row by row. A row that failed has token id -1 and its error; the others stand."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]  # None for rows that did not ask
    errors: dict[int, Exception] = field(default_factory=dict)  # by row


class PendingTokens:
    """What a step chose, on its way from the device. `chosen`: the ids there, [R]."""

    def __init__(self, packed: Tensor, rows: Sequence[SamplerRow], scores: Tensor | None = None) -> None:
        """`packed`: int32 [2, R], the ids, and the bits of the likeliest tokens' edited logits, float32. `scores`: of
        the rows that ask for log-probabilities, see `pack_scores`."""
        self.chosen = packed[0]
        self._rows = rows
        self._score_words = 0 if scores is None else scores.shape[1]
        words = packed if scores is None else torch.cat((packed.flatten(), scores.flatten()))
        self._host = words
        self._event: torch.cuda.Event | None = None
        if words.is_cuda:
            self._host = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
            self._host.copy_(words, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def is_ready(self) -> bool:
        """Whether `read` would not have to wait."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def read(self) -> SampledTokens:
        """Wait for the device."""
        if self._event is not None:
            self._event.synchronize()
        rows = self._rows
        words = self._host.flatten()
        token_ids: list[int] = words[: len(rows)].tolist()
        best = words[len(rows) : 2 * len(rows)].view(torch.float32).tolist()
        errors = {i: _row_error(rows[i], value) for i, value in enumerate(best) if not math.isfinite(value)}
        for i in errors:
            token_ids[i] = -1
        return SampledTokens(token_ids, self._logprobs(token_ids, words[2 * len(rows) :]), errors)

    def _logprobs(self, token_ids: list[int], scores: Tensor) -> list[TokenLogprob | None]:
        out: list[TokenLogprob | None] = [None] * len(token_ids)
        if self._score_words:
            asking = rows_asking(self._rows)
            entries = unpack_scores(scores.view(len(asking), self._score_words), [token_ids[i] for i in asking])
            for i, entry in zip(asking, entries, strict=True):
                if token_ids[i] >= 0:
                    out[i] = replace(entry, top=entry.top[: self._rows[i].num_logprobs])
        return out


def rows_asking(rows: Sequence[SamplerRow]) -> list[int]:
    """The rows that want to know log-probabilities."""
    return [i for i, row in enumerate(rows) if row.num_logprobs >= 0]


def _row_error(row: SamplerRow, best: float) -> Exception:
    if row.mask_error is not None:
        return row.mask_error
    if best != -np.inf:
        return GenerationError("the model's logits are not finite numbers; load it in another dtype")
    if row.bitmask is not None:
        return GrammarError(
            "the constraint leaves no token that may come next: it contradicts itself or suppressed tokens; simplify it"
        )
    return GenerationError("every token is suppressed or banned; suppress fewer tokens")
