# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, operator, attr-defined"
"""The next token of each row in Triton, as `runtime.sampler.Sampler` defines it, in one to five launches.

Each launch has a program for each row and tile of 2048 tokens; the last program of a row draws the conclusion for all
of them. Sums are of whole numbers, so a choice depends on its row alone. `kept_floor_triton.py` has top-k and top-p.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels import choice_plan as plan
from lmnb.kernels.kept_floor_triton import (
    FEW_CANDIDATES,
    FLOOR,
    HOLDS_ENDS,
    LOWEST,
    MODE,
    MOST_CANDIDATES,
    PEAK,
    PIVOTS,
    STATE,
    STATE_FIELDS,
    allowed_scores,
    collect,
    narrow,
    place_pivots,
)
from lmnb.kernels.score_tiles_triton import (
    BLOCK,
    edited_scores,
    is_last,
    masked,
    penalise,
    temper,
    tile_columns,
    weights,
)

WARPS = 4  # of each program

_CHOICE_FIELDS = tl.constexpr(plan.CHOICE_FIELDS)
_PLACE = tl.constexpr(plan.PLACE)
_ENDS = tl.constexpr(plan.ENDS)
_TEMPERATURE = tl.constexpr(plan.TEMPERATURE)
_TOP_K = tl.constexpr(plan.TOP_K)
_LEAST = tl.constexpr(plan.LEAST)
_HALF_TOP_P = tl.constexpr(plan.TOP_P // 2)
_HALF_UNIFORM = tl.constexpr(plan.UNIFORM // 2)
_NO_TOKEN = tl.constexpr(2147483647)


@triton.jit(do_not_specialize=["num_tiles"], do_not_specialize_on_alignment=["best"])
def _take_likeliest(
    logits, penalised, masks, rows, rows64, states, peaks, firsts, lows, counters, ids, best, last_tokens,
    logits_stride, width, num_tokens, num_words, num_blocks, num_tiles,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PIVOTS: tl.constexpr,
):  # fmt: skip
    """The likeliest token of each row, the first of equals; and what the passes to come want to know of it."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    fields = rows + row * _CHOICE_FIELDS
    ends = tl.load(fields + _ENDS)
    value = edited_scores(logits, penalised, masks, fields, block, logits_stride, width, num_tokens, num_words, BLOCK)
    columns = tile_columns(block, BLOCK)
    ok = columns < num_tokens
    at = row * num_blocks + block
    peak = tl.max(value)
    tl.store(peaks + at, peak)
    tl.store(firsts + at, tl.min(tl.where((value == peak) & ok, columns, num_tokens)))
    tl.store(lows + at, tl.min(tl.where(value > float("-inf"), value, float("inf"))))
    if ends >= 0:  # the second half of the arrays is for scores without them
        banned = masked(value, masks, ends, block, num_words, BLOCK)
        peak = tl.max(banned)
        tl.store(peaks + num_tiles + at, peak)
        tl.store(firsts + num_tiles + at, tl.min(tl.where((banned == peak) & ok, columns, num_tokens)))
    if is_last(counters + row, num_blocks):
        blocks = row * num_blocks + tl.arange(0, BLOCKS)
        exists = tl.arange(0, BLOCKS) < num_blocks
        tops = tl.load(peaks + blocks, mask=exists, other=float("-inf"), cache_modifier=".cg")
        where = tl.load(firsts + blocks, mask=exists, other=_NO_TOKEN, cache_modifier=".cg")
        top = tl.max(tops)
        token = tl.min(tl.where(tops == top, where, _NO_TOKEN))
        holds_ends = 0.0
        if ends >= 0:
            tops = tl.load(peaks + num_tiles + blocks, mask=exists, other=float("-inf"), cache_modifier=".cg")
            if tl.max(tops) > float("-inf"):
                where = tl.load(firsts + num_tiles + blocks, mask=exists, other=_NO_TOKEN, cache_modifier=".cg")
                top = tl.max(tops)
                token = tl.min(tl.where(tops == top, where, _NO_TOKEN))
                holds_ends = 1.0
        tl.store(ids + row, token)
        tl.store(best + row, top)
        tl.store(last_tokens + tl.load(fields + _PLACE).to(tl.int64), token)
        state = states + row * STATE
        temperature = tl.load(fields + _TEMPERATURE).to(tl.float32, bitcast=True)
        mode = 0.0
        if (temperature > 0) & (tl.abs(top) < float("inf")):
            mode = 1.0
            top_p = tl.load(rows64 + row * (_CHOICE_FIELDS // 2) + _HALF_TOP_P)
            if (tl.load(fields + _TOP_K) < num_tokens) | (top_p < 1):
                mode = 2.0
            lowest = tl.min(tl.load(lows + blocks, mask=exists, other=float("inf"), cache_modifier=".cg"))
            # A tiny temperature may make the range empty: then nothing but the likeliest weighs anything.
            place_pivots(state, tl.minimum(tl.maximum(lowest, top + LOWEST * temperature), top), top, PIVOTS)
        tl.store(state + MODE, mode)
        tl.store(state + PEAK, top)
        tl.store(state + FLOOR, tl.load(fields + _LEAST).to(tl.float32, bitcast=True))
        tl.store(state + HOLDS_ENDS, holds_ends)


@triton.jit
def _kept_weights(
    logits, penalised, masks, fields, state, block, logits_stride, width, num_tokens, num_words, BLOCK: tl.constexpr
):  # fmt: skip
    """A tile of the row's weights; 0 where a filter drops the token."""
    value = allowed_scores(
        logits, penalised, masks, fields, state, block, logits_stride, width, num_tokens, num_words, BLOCK
    )
    temperature = tl.load(fields + _TEMPERATURE).to(tl.float32, bitcast=True)
    tempered = temper(value, tl.load(state + PEAK), temperature)
    return tl.where(tempered >= tl.load(state + FLOOR), weights(tempered), 0)


@triton.jit
def _draw(
    logits, penalised, masks, rows, rows64, states, peaks, sums, counters, ids, last_tokens,
    logits_stride, width, num_tokens, num_words, num_blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The token at which the sum of the kept weights, in the order of ids, passes the row's uniform share of all."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    state = states + row * STATE
    if tl.load(state + MODE) > 0:
        fields = rows + row * _CHOICE_FIELDS
        temperature = tl.load(fields + _TEMPERATURE).to(tl.float32, bitcast=True)
        at = row * num_blocks + block
        total = tl.full((), 0, tl.int64)
        peak = temper(tl.load(peaks + at), tl.load(state + PEAK), temperature)
        if peak >= tl.maximum(tl.load(state + FLOOR), LOWEST):
            weight = _kept_weights(
                logits, penalised, masks, fields, state, block, logits_stride, width, num_tokens, num_words, BLOCK
            )
            total = tl.sum(weight)
        tl.store(sums + at, total)
        if is_last(counters + row, num_blocks):
            i = tl.arange(0, BLOCKS)
            of_blocks = tl.load(sums + row * num_blocks + i, mask=i < num_blocks, other=0, cache_modifier=".cg")
            total = tl.sum(of_blocks)
            uniform = tl.load(rows64 + row * (_CHOICE_FIELDS // 2) + _HALF_UNIFORM)
            target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
            up_to = tl.cumsum(of_blocks, 0)
            chosen = tl.sum((up_to <= target).to(tl.int32))
            target -= tl.sum(tl.where(i < chosen, of_blocks, 0))
            weight = _kept_weights(
                logits, penalised, masks, fields, state, chosen, logits_stride, width, num_tokens, num_words, BLOCK
            )
            i = tl.arange(0, BLOCK // 32)
            of_words = tl.sum(weight, 1)
            up_to = tl.cumsum(of_words, 0)
            word = tl.sum((up_to <= target).to(tl.int32))
            target -= tl.sum(tl.where(i < word, of_words, 0))
            up_to = tl.cumsum(tl.sum(tl.where(i[:, None] == word, weight, 0), 0), 0)
            token = chosen * BLOCK + word * 32 + tl.sum((up_to <= target).to(tl.int32))
            tl.store(ids + row, token)
            tl.store(last_tokens + tl.load(fields + _PLACE).to(tl.int64), token)


class ChoiceSpace:
    """Memory that choosing needs on the device, for the most rows there were so far."""

    def __init__(self, num_tokens: int, device: torch.device) -> None:
        self.num_tokens, self.num_blocks = num_tokens, triton.cdiv(num_tokens, BLOCK)
        self._device = device
        self.num_rows = 0
        self.candidates = torch.empty(0, device=device)

    def reserve(self, num_rows: int, *, searches: bool) -> None:
        """Room for so many rows."""
        if num_rows > self.num_rows:
            self.num_rows = max(num_rows, 2 * self.num_rows)
            self._allocate()
        if searches and len(self.candidates) < self.num_rows:
            self.candidates = torch.empty(self.num_rows, MOST_CANDIDATES, device=self._device)

    def _allocate(self) -> None:
        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(self.num_rows, *shape, dtype=dtype, device=self._device)

        tiles = self.num_blocks
        self.states = empty(STATE_FIELDS)
        self.peaks, self.firsts = empty(2 * tiles), empty(2 * tiles, dtype=torch.int32)
        self.lows, self.sums = empty(tiles), empty(tiles, dtype=torch.int64)
        self.masses, self.counts = empty(tiles, PIVOTS), empty(tiles, PIVOTS, dtype=torch.int32)
        self.totals = empty(dtype=torch.int64)
        # Programs count themselves, and the last one sets the counter back.
        self.counters, self.fills = (torch.zeros_like(self.totals, dtype=torch.int32) for _ in range(2))


def choose(logits: Tensor, choices: plan.ChoicePlan, space: ChoiceSpace, last_tokens: Tensor) -> Tensor:
    """The next token of each of R choices from `logits` [L, V], by what `choices` says of it.

    int32 [2, R], so that one copy takes all of it to the host: the ids, and the bits of the likeliest tokens' scores,
    float32; where one is not finite, there is no choice. Row i's id is also kept in `last_tokens` at its `PLACE`.
    """
    num_rows, num_tokens = len(choices.rows), space.num_tokens
    space.reserve(num_rows, searches=choices.searches)
    num_words = choices.masks.shape[1]
    penalised = torch.empty(len(choices.penalties), num_words * 32, device=logits.device)
    if len(penalised):
        penalise(logits, choices, num_tokens, penalised)
    result = torch.empty(2, num_rows, dtype=torch.int32, device=logits.device)
    rows64 = choices.rows.view(torch.float64)
    grid = (num_rows, space.num_blocks)
    blocks = triton.next_power_of_2(space.num_blocks)
    source = (logits, penalised, choices.masks, choices.rows, rows64, space.states, space.peaks)
    sizes = (logits.stride(0), logits.shape[1], num_tokens, num_words, space.num_blocks)
    _take_likeliest[grid](
        *source, space.firsts, space.lows, space.counters, result[0], result[1].view(torch.float32), last_tokens,
        *sizes, space.num_rows * space.num_blocks, BLOCK=BLOCK, BLOCKS=blocks, PIVOTS=PIVOTS, num_warps=WARPS,
    )  # fmt: skip
    if choices.searches:
        for first in (True, False):
            narrow[grid](
                *source, space.sums, space.counts, space.masses, space.totals, space.counters, *sizes,
                FIRST=first, BLOCK=BLOCK, BLOCKS=blocks, PIVOTS=PIVOTS, num_warps=WARPS,
            )  # fmt: skip
        collect[grid](
            *source, space.sums, space.counts, space.totals, space.candidates, space.fills, space.counters, *sizes,
            BLOCK=BLOCK, BLOCKS=blocks, MOST=MOST_CANDIDATES, FEW=min(FEW_CANDIDATES, MOST_CANDIDATES), num_warps=WARPS,
        )  # fmt: skip
    if choices.draws:
        _draw[grid](
            *source, space.sums, space.counters, result[0], last_tokens, *sizes,
            BLOCK=BLOCK, BLOCKS=blocks, num_warps=WARPS,
        )  # fmt: skip
    return result
