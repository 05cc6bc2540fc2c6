"""From logits to token ids: penalties, masks, temperature, top-k, top-p, min-p, and one reproducible draw a row.

Works on whichever device the logits are on. Knows nothing of text, grammars' rules or scheduling: a row brings
its parameters, what was generated so far, and the mask of this step. It changes neither rows nor logits.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from lmnb.errors import GenerationError, GrammarError
from lmnb.runtime.request import SamplingParams, TokenLogprob

_BLOCK = 64  # uniforms made at once; any multiple of 4, the generator's own block
_FIRST_CANDIDATES = 1024  # likeliest tokens looked at before a whole row is sorted (sorting costs 30 times more)


def fresh_seed() -> int:
    """A random seed for a request that named none: 63 bits, from the operating system."""
    return secrets.randbits(63)


class UniformStream:
    """Numbers in [0, 1) that depend on (seed, step) alone: Philox 4x64, keyed by the seed, with the step as counter.

    J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """

    def __init__(self, seed: int) -> None:
        self._key = seed % 2**128
        self._start = -1
        self._block: list[float] = []

    def __getitem__(self, step: int) -> float:
        start = step - step % _BLOCK
        if start != self._start:
            # The generator yields four numbers a count, so a block starts at count start / 4.
            bits = np.random.Philox(key=self._key, counter=start // 4)
            self._block = np.random.Generator(bits).random(_BLOCK).tolist()
            self._start = start
        return self._block[step - start]


class SamplerRow:
    """One request as the sampler sees it.

    `end_ids`: the tokens that end this request (`stopping.end_token_ids`). Tell it each token that becomes
    part of the request with `push`; set `bitmask` (int32 words, see `GrammarMatcher.fill`) before a step
    that is constrained and None before one that is not.
    """

    def __init__(self, params: SamplingParams, *, seed: int, end_ids: frozenset[int] = frozenset()) -> None:
        self.params = params
        self.seed = seed
        self.step = 0  # generated tokens so far: the counter of the next draw
        self.bitmask: np.ndarray | None = None
        self.counts: dict[int, int] = {}  # kept only if a penalty asks for it
        self.has_penalties = (
            params.frequency_penalty != 0 or params.presence_penalty != 0 or params.repetition_penalty != 1
        )
        self.ends = np.array(sorted(end_ids), dtype=np.int64)
        self.suppressed = np.array(sorted(set(params.suppress_token_ids) - end_ids), dtype=np.int64)
        self.is_greedy = params.temperature == 0 or params.top_k == 1
        self.uniforms = UniformStream(seed)

    def push(self, token_id: int) -> None:
        """One generated token: `advance` and `count` together."""
        self.advance()
        self.count(token_id)

    def advance(self) -> None:
        """A token has been drawn, known or not."""
        self.step += 1

    def count(self, token_id: int) -> None:
        """Let penalties see a token that was drawn."""
        if self.has_penalties:
            self.counts[token_id] = self.counts.get(token_id, 0) + 1

    def pop(self, token_id: int) -> None:
        """Take the last `push` back."""
        self.step -= 1
        if self.has_penalties:
            self.counts[token_id] -= 1
            if not self.counts[token_id]:
                del self.counts[token_id]

    @property
    def bans_end(self) -> bool:
        """Whether `min_new_tokens` still holds end tokens back."""
        return self.step < self.params.min_new_tokens and len(self.ends) > 0

    @property
    def needs_last_token(self) -> bool:
        """Whether the next draw depends on which token came last, on this side of the device."""
        return self.has_penalties or self.num_logprobs >= 0

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest token is taken as it is."""
        edits = self.has_penalties or self.bans_end or len(self.suppressed) > 0 or self.bitmask is not None
        return self.is_greedy and not edits

    @property
    def num_logprobs(self) -> int:
        """How many of the likeliest tokens to report beside the chosen one; -1 if no log-probabilities are asked."""
        params = self.params
        return params.top_logprobs_num if params.return_logprob or params.top_logprobs_num else -1


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What one step chose, row by row. A row that failed has token id -1 and its error; the others stand."""

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]  # None for rows that did not ask
    errors: dict[int, Exception] = field(default_factory=dict)  # by row


class PendingTokens:
    """What a step chose, on its way from the device. `chosen`: the ids there, [R]."""

    def __init__(self, packed: Tensor, logits: Tensor, rows: Sequence[SamplerRow]) -> None:
        self.chosen = packed[0]
        self._logits, self._rows = logits, rows
        self._host = packed
        self._event: torch.cuda.Event | None = None
        if packed.is_cuda:
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def is_ready(self) -> bool:
        """Whether `read` would not have to wait."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def read(self) -> SampledTokens:
        """Wait for the device."""
        if self._event is not None:
            self._event.synchronize()
        rows = self._rows
        token_ids: list[int] = self._host[0].tolist()
        best = self._host[1].view(torch.float32).tolist()
        errors = {i: _row_error(rows[i], value) for i, value in enumerate(best) if not math.isfinite(value)}
        for i in errors:
            token_ids[i] = -1
        return SampledTokens(token_ids, _row_logprobs(self._logits, rows, token_ids), errors)


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
        scores = _edited(logits[:, : self.num_tokens].float(), rows)
        chosen = scores.argmax(dim=-1)
        best = scores.gather(1, chosen[:, None]).squeeze(1)
        for block in _blocks([i for i, row in enumerate(rows) if not row.is_greedy], logits.device):
            chosen[block] = _draw(scores[block], [rows[i] for i in block])
        packed = torch.stack((chosen.int(), best.view(torch.int32)))
        return PendingTokens(packed, logits, rows)


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Log-probability of `token_ids[i]` under `logits[i]` (float32 [N, V]), and of the `num_top` likeliest tokens."""
    if not token_ids:
        return []
    logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
    wanted = torch.tensor(list(token_ids), device=logits.device)
    own = logprobs.gather(1, wanted[:, None]).squeeze(1).tolist()
    top_values, top_ids = logprobs.topk(min(num_top, logits.shape[1]), dim=-1)
    tops = [tuple(zip(*pair, strict=True)) for pair in zip(top_ids.tolist(), top_values.tolist(), strict=True)]
    return [TokenLogprob(*fields) for fields in zip(token_ids, own, tops, strict=True)]


def unpack_bitmask(bitmask: np.ndarray, num_tokens: int, device: torch.device) -> Tensor:
    """Bool [R, num_tokens], true where the bit of the token is set, from int32 words [R, W] (bit i of word j is
    token 32 j + i). Tokens beyond the words are false."""
    octets = torch.from_numpy(np.ascontiguousarray(bitmask).view(np.uint8)).to(device)
    weights = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=device)
    allowed = (octets.unsqueeze(-1) & weights).ne(0).view(len(bitmask), -1)[:, :num_tokens]
    missing = num_tokens - allowed.shape[1]
    return torch.nn.functional.pad(allowed, (0, missing)) if missing else allowed


def _blocks(rows: list[int], device: torch.device) -> list[list[int]]:
    """Rows to work on at once: all on a GPU; on a CPU one, which fits in its cache (several times quicker)."""
    return [[i] for i in rows] if device.type == "cpu" else [rows] * bool(rows)


def _edited(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """Logits after penalties and masks; the same tensor if no row has any."""
    if not any(row.has_penalties or row.bans_end or len(row.suppressed) or row.bitmask is not None for row in rows):
        return logits
    scores = logits.clone()
    num_tokens = scores.shape[1]
    _apply_penalties(scores, rows)
    masks = {i: row.bitmask for i, row in enumerate(rows) if row.bitmask is not None}
    for block in _blocks([*masks], scores.device):
        allowed = unpack_bitmask(np.stack([masks[i] for i in block]), num_tokens, scores.device)
        scores[block] = scores[block].masked_fill_(~allowed, -torch.inf)
    _forbid(scores, [(i, row.suppressed) for i, row in enumerate(rows) if len(row.suppressed)])
    _ban_ends(scores, rows)
    return scores


def _apply_penalties(scores: Tensor, rows: Sequence[SamplerRow]) -> None:
    """In place, and only where a token was generated before."""
    hits = [(i, token, n) for i, row in enumerate(rows) for token, n in row.counts.items() if token < scores.shape[1]]
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


def _row_error(row: SamplerRow, best: float) -> Exception:
    if best != -np.inf:
        return GenerationError("the model's logits are not finite numbers; load it in another dtype")
    if row.bitmask is not None:
        return GrammarError(
            "the constraint leaves no token that may come next: it contradicts itself or suppressed tokens, or it "
            "grew too complex; simplify it"
        )
    return GenerationError("every token is suppressed or banned; suppress fewer tokens")


def _row_logprobs(logits: Tensor, rows: Sequence[SamplerRow], token_ids: Sequence[int]) -> list[TokenLogprob | None]:
    out: list[TokenLogprob | None] = [None] * len(rows)
    asking = [i for i, row in enumerate(rows) if row.num_logprobs >= 0 and token_ids[i] >= 0]
    if asking:
        raw = logits[torch.tensor(asking, device=logits.device)]
        found = token_logprobs(raw, [token_ids[i] for i in asking], max(rows[i].num_logprobs for i in asking))
        for i, entry in zip(asking, found, strict=True):
            out[i] = TokenLogprob(entry.token_id, entry.logprob, entry.top[: rows[i].num_logprobs])
        _add_masked(logits, rows, out)
    return out


def _add_masked(logits: Tensor, rows: Sequence[SamplerRow], entries: list[TokenLogprob | None]) -> None:
    """What the chosen tokens' log-probabilities are among the tokens that the rows' masks allow."""
    masked = [i for i, row in enumerate(rows) if row.bitmask is not None and entries[i] is not None]
    for block in _blocks(masked, logits.device):
        raw = logits[torch.tensor(block, device=logits.device)].float()
        masks = np.stack([mask for i in block if (mask := rows[i].bitmask) is not None])
        allowed = unpack_bitmask(masks, raw.shape[1], raw.device)
        share = (raw.masked_fill(~allowed, -torch.inf).logsumexp(dim=-1) - raw.logsumexp(dim=-1)).tolist()
        alone = (allowed.sum(dim=-1) == 1).tolist()
        for i, log_share, is_alone in zip(block, share, alone, strict=True):
            entry = entries[i]
            assert entry is not None
            if entry.logprob is not None:
                after = 0.0 if is_alone else min(0.0, entry.logprob - log_share)
                entries[i] = replace(entry, masked=after)
