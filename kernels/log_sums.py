"""Logarithms of sums of exponentials, from which log-probabilities are taken: of all of a row's logits, or a mask's."""

from __future__ import annotations

import torch
from torch import Tensor

from lmnb.kernels.dispatch import uses_triton
from lmnb.kernels.masked_scores import unpack_bitmask


def log_sums(
    logits: Tensor, sources: Tensor, masks: Tensor | None = None, numbers: Tensor | None = None, num_tokens: int = 0
) -> Tensor:
    """Of N rows `sources` (ints [N]) of `logits` [L, V]: the largest one, and the logarithm of the sum of the
    exponentials of all, the largest being 0. float32 [N, 2]; a row's bits depend on that row only.

    With `masks` (int32 words [M, W], see `ChoicePlan`): of those that mask `numbers[i]` leaves of the first
    `num_tokens`.
    """
    if uses_triton(logits):
        from lmnb.kernels.log_sums_triton import log_sums_triton

        return log_sums_triton(logits, sources, masks, numbers, num_tokens)
    return log_sums_reference(logits, sources, masks, numbers, num_tokens)


def log_sums_reference(
    logits: Tensor, sources: Tensor, masks: Tensor | None = None, numbers: Tensor | None = None, num_tokens: int = 0
) -> Tensor:
    """The same in plain torch."""
    scores = logits[sources].float()
    if masks is not None:
        allowed = unpack_bitmask(masks[numbers], num_tokens)
        scores = scores[:, :num_tokens].masked_fill(~allowed, -torch.inf)
    # This operator goes through rows one by one, where `logsumexp` may share a single row out among threads.
    logprobs = scores.log_softmax(dim=-1)
    return torch.stack((scores.amax(dim=-1), -logprobs.amax(dim=-1)), dim=1)
