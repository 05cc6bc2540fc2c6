"""Log-probabilities of tokens under the model's raw distribution, computed where the logits are.

All of a row's numbers are packed as int32 words (of a float32 its bits), so that they reach the host in one copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lmnb.runtime.request import TokenLogprob


def pack_scores(logits: Tensor, chosen: Tensor, num_top: int, allowed: Tensor | None = None) -> Tensor:
    """Of each `chosen[i]` (int64 [N]) under `logits[i]` (float [N, V]): its log-probability; the same among the tokens
    that a mask leaves, where `allowed` [N] has the logarithm of the sum of their exponentials and not NaN; and the ids
    and log-probabilities of the likeliest. int32 [N, 2 + 2 * min(num_top, V)]; nothing is waited for."""
    logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
    own = logprobs.gather(1, chosen[:, None])
    if allowed is None:
        masked = torch.full_like(own, math.nan)
    else:
        masked = (logits.gather(1, chosen[:, None]).float() - allowed[:, None]).clamp_(max=0)
    values, ids = logprobs.topk(min(num_top, logits.shape[1]), dim=-1)
    return torch.cat((own.view(torch.int32), masked.view(torch.int32), ids.int(), values.view(torch.int32)), dim=1)


def allowed_logsumexp(logits: Tensor, allowed: Tensor) -> Tensor:
    """The logarithm of the sum of the exponentials of the logits (float [N, V]) that are `allowed` (bool [N, V])."""
    return logits.float().masked_fill(~allowed, -torch.inf).logsumexp(dim=-1)


def unpack_scores(packed: Tensor, token_ids: Sequence[int]) -> list[TokenLogprob]:
    """What `pack_scores` has packed, on the host."""
    num_top = packed.shape[1] // 2 - 1
    floats = packed.view(torch.float32)
    ids, values = packed[:, 2 : 2 + num_top].tolist(), floats[:, 2 + num_top :].tolist()
    tops = [tuple(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]
    fields = zip(token_ids, *floats[:, :2].t().tolist(), tops, strict=True)
    return [TokenLogprob(token, own, top, None if math.isnan(masked) else masked) for token, own, masked, top in fields]
