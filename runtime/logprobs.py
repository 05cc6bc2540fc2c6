"""Log-probabilities of tokens under the model's raw distribution, computed where the logits are.

All of a row's numbers are packed as int32 words (of a float32 its bits), so that they reach the host in one copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lmnb.kernels.log_sums import log_sums
from lmnb.runtime.request import TokenLogprob


def pack_scores(logits: Tensor, sources: Tensor, chosen: Tensor, num_top: int, allowed: Tensor | None = None) -> Tensor:
    """Of each `chosen[i]` (int64 [N]) under row `sources[i]` (int64 [N]) of `logits` (float [L, V]): its
    log-probability; the same among the tokens that a mask leaves, where `allowed` [N, 2] has their `log_sums` and not
    NaN; and the ids and log-probabilities of the likeliest. int32 [N, 2 + 2 * min(num_top, V)]; nothing is waited for,
    and a row's bits depend on that row only."""
    everything = log_sums(logits, sources)
    raw = logits[sources, chosen].float()
    own = _logprobs(raw, everything)
    masked = torch.full_like(own, math.nan) if allowed is None else _logprobs(raw, allowed).clamp_(max=0)
    packed = [own.view(torch.int32)[:, None], masked.view(torch.int32)[:, None]]
    if num_top:
        values, ids = logits[sources].topk(min(num_top, logits.shape[1]), dim=-1)
        packed += [ids.int(), _logprobs(values.float(), everything[:, None]).view(torch.int32)]
    return torch.cat(packed, dim=1)


def _logprobs(scores: Tensor, sums: Tensor) -> Tensor:
    """Of scores with `log_sums` [..., 2]."""
    return scores - sums[..., 0] - sums[..., 1]


def unpack_scores(packed: Tensor, token_ids: Sequence[int]) -> list[TokenLogprob]:
    """What `pack_scores` has packed, on the host."""
    num_top = packed.shape[1] // 2 - 1
    floats = packed.view(torch.float32)
    ids, values = packed[:, 2 : 2 + num_top].tolist(), floats[:, 2 + num_top :].tolist()
    tops = [tuple(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]
    fields = zip(token_ids, *floats[:, :2].t().tolist(), tops, strict=True)
    return [TokenLogprob(token, own, top, None if math.isnan(masked) else masked) for token, own, masked, top in fields]
