"""Log-probabilities of tokens that are known before their logits are: a prompt's, and those that a grammar forces."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmnb.runtime.batch_builder import BuiltBatch, PromptSpan
from lmnb.runtime.logprobs import pack_scores, unpack_scores
from lmnb.runtime.request import TokenLogprob

_BLOCK = 1024  # rows of logits looked at together: torch makes float32 copies of them, as wide as the vocabulary


class PendingScores:
    """A step's, on their way from the device. Nothing is waited for until `read`."""

    def __init__(self, built: BuiltBatch, logits: Tensor) -> None:
        self._spans = built.prompt_spans
        self._targets = [span.targets for span in self._spans]
        self._host: list[Tensor] = []  # of each block, see `pack_scores`
        self._event: torch.cuda.Event | None = None
        if not self._spans:
            return
        rows = [row for span in self._spans for row in range(span.start, span.stop)]
        targets = [target for each in self._targets for target in each]
        index = torch.tensor([rows, targets]).to(logits.device, non_blocking=True)
        num_top = max(span.num_top for span in self._spans)
        for start in range(0, len(rows), _BLOCK):
            block, wanted = index[:, start : start + _BLOCK]
            self._host.append(_to_host(pack_scores(logits, block, wanted, num_top)))
        if logits.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> list[tuple[PromptSpan, list[TokenLogprob]]]:
        """Wait for the device. An entry for each token of each span."""
        if self._event is not None:
            self._event.synchronize()
        if not self._spans:
            return []
        scores = unpack_scores(torch.cat(self._host), [target for each in self._targets for target in each])
        found = []
        for span, targets in zip(self._spans, self._targets, strict=True):
            mine, scores = scores[: len(targets)], scores[len(targets) :]
            found.append((span, [replace(entry, top=entry.top[: span.num_top]) for entry in mine]))
        return found


def _to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
