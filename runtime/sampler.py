"""From logits to token ids: penalties, masks, temperature, top-k, top-p, min-p, and one reproducible draw a row.

Works on whichever device the logits are on. Knows nothing of text, grammars' rules or scheduling: a row brings
its parameters, what was generated so far, and the mask of this step. It changes neither rows nor logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lmnb.kernels.log_sums import log_sums
from lmnb.kernels.masked_scores import forbid_masked, likeliest
from lmnb.runtime.logprobs import pack_scores
from lmnb.runtime.pending_tokens import PendingTokens, SampledTokens, rows_asking
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.sampler_row import SamplerRow

_FIRST_CANDIDATES = 1024  # likeliest tokens looked at before a whole row is sorted (sorting costs 30 times more)


class Sampler:
    """Chooses one token a row. `num_tokens`: ids from there on are padding of the model's vocabulary, never chosen."""

    def __init__(self, num_tokens: int | None = None) -> None:
        self.num_tokens = num_tokens

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[SamplerRow]) -> SampledTokens:
        """Choose the next token of each row from `logits`, float32 [B, V], where B = len(rows).

        Filters act together on the tempered distribution: kept are the tokens among the `top_k` likeliest, and
        those with less than `top_p` mass above them, and those of at least `min_p` times the likeliest one's
        probability (ties share their fate). The draw is an inverse CDF over the kept tokens in the order of
        their ids, not of their probabilities: that needs no sort, and near-ties that change places between two
        batch sizes do not change what is drawn. Penalties (repetition: Keskar et al. 2019, CTRL; frequency and
        presence: subtracted) and masks act before temperature; log-probabilities are of the raw distribution.
        """
        assert logits.shape[0] == len(rows)
        if not rows:
            return SampledTokens([], [])
        return self.launch(logits, rows).read()

    @torch.inference_mode()
    def launch(self, logits: Tensor, rows: Sequence[SamplerRow]) -> PendingTokens:
        """`sample`, without waiting for the device. `logits` may be of any floating dtype; there is a row at least."""
        scores = logits[:, : self.num_tokens].float()
        if all(row.is_greedy and not row.has_edits for row in rows):
            chosen, best = likeliest(scores, [row.bitmask for row in rows])
        else:
            scores = _edited(scores, rows)
            chosen, best = likeliest(scores, [None] * len(rows))
        for block in _blocks([i for i, row in enumerate(rows) if not row.is_greedy], logits.device):
            chosen[block] = _draw(scores[block], [rows[i] for i in block])
        packed = torch.stack((chosen.int(), best.view(torch.int32)))
        return PendingTokens(packed, rows, _scores(logits, rows, chosen, scores.shape[1]))


def _blocks(rows: list[int], device: torch.device) -> list[list[int]]:
    """Rows to work on at once: all on a GPU; on a CPU one, which fits in its cache (several times quicker)."""
    return [[i] for i in rows] if device.type == "cpu" else [rows] * bool(rows)


def _edited(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """Logits after penalties and masks; the same tensor if no row has any."""
    if not any(row.has_edits or row.bitmask is not None for row in rows):
        return logits
    scores = logits.clone()
    _apply_penalties(scores, rows)
    forbid_masked(scores, [row.bitmask for row in rows])
    _forbid(scores, [(i, row.suppressed) for i, row in enumerate(rows) if len(row.suppressed)])
    _ban_ends(scores, rows)
    return scores


def _apply_penalties(scores: Tensor, rows: Sequence[SamplerRow]) -> None:
    """In place, and only where a token was generated before."""
    hits = [(i, token, n) for i, row in enumerate(rows) for token, n in row.counts if token < scores.shape[1]]
    if not hits:
        return
    row_index, token_index, counts = (torch.tensor(column, device=scores.device) for column in zip(*hits, strict=True))

    def per_row(values: list[float]) -> Tensor:
        return _column(values, scores.dtype, scores.device)[row_index, 0]

    old = scores[row_index, token_index]
    repetition = per_row([row.params.repetition_penalty for row in rows])
    new = torch.where(old > 0, old / repetition, old * repetition)
    new -= per_row([row.params.frequency_penalty for row in rows]) * counts
    new -= per_row([row.params.presence_penalty for row in rows])
    scores[row_index, token_index] = new


def _forbid(scores: Tensor, bans: Sequence[tuple[int, np.ndarray]]) -> None:
    """Set the scores of (row, token ids) to minus infinity, in place."""
    if not bans:
        return
    token_index = np.concatenate([tokens for _, tokens in bans])
    row_index = np.repeat([i for i, _ in bans], [len(tokens) for _, tokens in bans])
    known = (token_index >= 0) & (token_index < scores.shape[1])
    pairs = torch.from_numpy(np.stack([row_index[known], token_index[known]])).to(scores.device)
    scores[pairs[0], pairs[1]] = -torch.inf


def _ban_ends(scores: Tensor, rows: Sequence[SamplerRow]) -> None:
    """Ban end tokens where `min_new_tokens` says so, unless the row has nothing else: a finished match may end."""
    banning = [i for i, row in enumerate(rows) if row.bans_end]
    if not banning:
        return
    before = scores[banning]
    banned = before.clone()
    _forbid(banned, [(j, rows[i].ends) for j, i in enumerate(banning)])
    stuck = banned.amax(dim=-1, keepdim=True) == -torch.inf
    scores[banning] = torch.where(stuck, before, banned)


def kept_mass(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Probability of each token after temperature, zero for those that a filter drops: [R, V]. Rows whose filters
    drop something sum to less than 1; all temperatures must be above 0."""
    # The likeliest token is brought to 0 before the division: a tiny temperature must not overflow, nor round to 0.
    temperatures = _column([max(p.temperature, 1e-30) for p in params], scores.dtype, scores.device)
    tempered = (scores - scores.amax(dim=-1, keepdim=True)) / temperatures
    # float64, so that a draw does not depend on how a device rounds its sums; MPS has none.
    mass = tempered.softmax(dim=-1, dtype=torch.float32 if scores.device.type == "mps" else torch.float64)
    floor = _thresholds(mass, params)
    return mass if floor is None else mass.masked_fill_(mass < floor, 0)


def _draw(scores: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """One token id a row, int64 [R]. Rows without a finite score yield any id; the caller reports them."""
    mass = kept_mass(scores, [row.params for row in rows])
    cdf = mass.cumsum(dim=-1)
    if cdf.device.type != "cpu":
        # A parallel scan need not be monotonic to the last bit: a dropped token must not come out of that.
        cdf = cdf.masked_fill_(mass == 0, 0).cummax(dim=-1).values
    # u < 1 and round-to-nearest keep the target below the total, so the position is always that of a kept token.
    target = cdf[:, -1:] * _column([row.uniforms[row.step] for row in rows], cdf.dtype, cdf.device)
    return torch.searchsorted(cdf, target, right=True).squeeze(1).clamp_(max=cdf.shape[1] - 1)


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)[:, None]


def _thresholds(mass: Tensor, params: Sequence[SamplingParams]) -> Tensor | None:
    """The least probability that top-k, top-p and min-p let through, [R, 1]; None if no row filters."""
    ks = [p.top_k if 0 < p.top_k < mass.shape[1] else 0 for p in params]
    filters_p = any(p.top_p < 1 for p in params)
    if not filters_p and not any(ks) and all(p.min_p == 0 for p in params):
        return None
    floor = _column([p.min_p for p in params], mass.dtype, mass.device) * mass.amax(dim=-1, keepdim=True)
    if any(ks):
        likeliest = mass.topk(max(ks), dim=-1).values
        index = torch.tensor([max(k - 1, 0) for k in ks], device=mass.device)[:, None]
        used = torch.tensor([k > 0 for k in ks], device=mass.device)[:, None]
        floor = torch.where(used, torch.maximum(floor, likeliest.gather(1, index)), floor)
    if filters_p:
        limit = _column([p.top_p for p in params], mass.dtype, mass.device)
        used = torch.tensor([p.top_p < 1 for p in params], device=mass.device)[:, None]
        floor = torch.where(used, torch.maximum(floor, _top_p_threshold(mass, limit, ~used, floor)), floor)
    return floor


def _top_p_threshold(mass: Tensor, limit: Tensor, settled: Tensor, floor: Tensor) -> Tensor:
    """Probability of the token at which the likeliest tokens' sum reaches `limit`, [R, 1]; 0 where that is below
    `floor`, in rows that are `settled` anyway, or where rounding leaves the full sum below the limit."""
    width = mass.shape[1]
    # On the CPU a sort is slow and looking at a result is free; on a GPU it is the other way round.
    sizes = [_FIRST_CANDIDATES, width] if mass.device.type == "cpu" and width > _FIRST_CANDIDATES else [width]
    for size in sizes:
        likeliest = mass.topk(size, dim=-1).values
        reached = likeliest.cumsum(dim=-1) >= limit
        if size == width or bool((reached[:, -1:] | settled | (likeliest[:, -1:] < floor)).all()):
            break
    position = reached.to(torch.uint8).argmax(dim=-1, keepdim=True)
    return torch.where(reached[:, -1:], likeliest.gather(1, position), 0)


def _scores(logits: Tensor, rows: Sequence[SamplerRow], chosen: Tensor, num_tokens: int) -> Tensor | None:
    """Log-probabilities of the chosen tokens of the rows that ask, see `pack_scores`."""
    asking = rows_asking(rows)
    if not asking:
        return None
    sources = torch.tensor(asking, device=logits.device)
    allowed = torch.full((len(asking), 2), torch.nan, device=logits.device)
    masked = {i: mask for i, row in enumerate(asking) if (mask := rows[row].bitmask) is not None}
    if masked:
        where = torch.tensor([*masked], device=logits.device)
        masks = torch.from_numpy(np.stack([*masked.values()])).to(logits.device)
        numbers = torch.arange(len(masked), device=logits.device)
        allowed[where] = log_sums(logits, sources[where], masks, numbers, num_tokens)
    return pack_scores(logits, sources, chosen[asking], max(rows[i].num_logprobs for i in asking), allowed)
