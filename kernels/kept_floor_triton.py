# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, operator, attr-defined"
"""The least score that top-k and top-p let through, found in Triton without a sort.

Let F(x) say that the tokens above x are fewer than k and have less than the share p of the mass: it is false up to
some score and true from there on, and that score, a token's, is the floor. Two passes test 16 pivots each, which
narrows the range of scores where it may lie 256 times. A third counts exactly what lies above that range and collects
what lies in it, mostly a few tokens; the last program of a row halves the range among these until one score is left.
If there are too many to collect, it goes through the whole row each time: slow, never wrong.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lmnb.kernels import choice_plan as plan
from lmnb.kernels.score_tiles_triton import edited_scores, is_last, masked, temper, weights

# What is known of a row while it is worked on, float32.
STATE_FIELDS = 32
PIVOTS = 16
MOST_CANDIDATES = 16384
FEW_CANDIDATES = 2048

STATE = tl.constexpr(STATE_FIELDS)
MODE = tl.constexpr(0)  # 0: chosen, or failed. 1: draws. 2: and looks for a floor
PEAK = tl.constexpr(1)
HIGH = tl.constexpr(2)  # F is known to be true there; it is false at the first pivot, or nothing lies below
FLOOR = tl.constexpr(3)  # of tempered logits
HOLDS_ENDS = tl.constexpr(4)  # whether end tokens are banned
PIVOT = tl.constexpr(STATE_FIELDS - PIVOTS)  # from here on
LOWEST = tl.constexpr(-31.0)  # tempered logits from there on down weigh nothing
_CHOICE_FIELDS = tl.constexpr(plan.CHOICE_FIELDS)
_ENDS = tl.constexpr(plan.ENDS)
_TEMPERATURE = tl.constexpr(plan.TEMPERATURE)
_TOP_K = tl.constexpr(plan.TOP_K)
_LEAST = tl.constexpr(plan.LEAST)
_HALF_TOP_P = tl.constexpr(plan.TOP_P // 2)
_SLACK = tl.constexpr(1e-5)  # more than float32 sums of a row are wrong by


@triton.jit
def allowed_scores(
    logits, penalised, masks, fields, state, block, logits_stride, width, num_tokens, num_words, BLOCK: tl.constexpr
):  # fmt: skip
    """A tile of a row's scores, with its end tokens banned if they are."""
    value = edited_scores(logits, penalised, masks, fields, block, logits_stride, width, num_tokens, num_words, BLOCK)
    ends = tl.where(tl.load(state + HOLDS_ENDS) > 0, tl.load(fields + _ENDS), -1)
    return masked(value, masks, ends, block, num_words, BLOCK)


@triton.jit
def place_pivots(state, low, high, PIVOTS: tl.constexpr):
    """Cut the range into equal parts, for the next pass."""
    i = tl.arange(0, PIVOTS)
    tl.store(state + PIVOT + i, low + (high - low) / PIVOTS * i.to(tl.float32))
    tl.store(state + HIGH, high)


@triton.jit
def _most_mass(top_p, total):
    """What the tokens above one that is kept weigh less than."""
    return tl.where(top_p < 1, top_p * total.to(tl.float64), float("inf"))


@triton.jit
def narrow(
    logits, penalised, masks, rows, rows64, states, peaks, sums, counts, masses, totals, counters,
    logits_stride, width, num_tokens, num_words, num_blocks,
    FIRST: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PIVOTS: tl.constexpr,
):  # fmt: skip
    """Test the row's pivots, and place new ones where the floor must lie."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    state = states + row * STATE
    if tl.load(state + MODE) == 2:
        fields = rows + row * _CHOICE_FIELDS
        temperature = tl.load(fields + _TEMPERATURE).to(tl.float32, bitcast=True)
        top_k = tl.load(fields + _TOP_K)
        top_p = tl.load(rows64 + row * (_CHOICE_FIELDS // 2) + _HALF_TOP_P)
        peak = tl.load(state + PEAK)
        low = tl.load(state + PIVOT)
        high = tl.load(state + HIGH)
        at = row * num_blocks + block
        i = tl.arange(0, PIVOTS)
        count = tl.zeros([PIVOTS], dtype=tl.int32)
        mass = tl.zeros([PIVOTS], dtype=tl.float32)
        if FIRST or tl.load(peaks + at) > low:
            value = allowed_scores(
                logits, penalised, masks, fields, state, block, logits_stride, width, num_tokens, num_words, BLOCK
            )
            if FIRST:
                tempered = temper(value, peak, temperature)
                tl.store(sums + at, tl.sum(weights(tempered)))
            else:
                tempered = (value - peak) * (1 / temperature)
            weight = tl.exp(tempered)
            for j in range(PIVOTS):
                above = value > tl.load(state + PIVOT + j)
                if top_k < num_tokens:
                    count = tl.where(i == j, tl.sum(above.to(tl.int32)), count)
                if top_p < 1:
                    mass = tl.where(i == j, tl.sum(tl.where(above, weight, 0.0)), mass)
        tl.store(counts + at * PIVOTS + i, count)
        tl.store(masses + at * PIVOTS + i, mass)
        if is_last(counters + row, num_blocks):
            blocks = row * num_blocks + tl.arange(0, BLOCKS)
            ok = tl.arange(0, BLOCKS) < num_blocks
            where = blocks[:, None] * PIVOTS + i[None, :]
            count = tl.sum(tl.load(counts + where, mask=ok[:, None], other=0, cache_modifier=".cg"), 0)
            mass = tl.sum(tl.load(masses + where, mask=ok[:, None], other=0.0, cache_modifier=".cg"), 0)
            if FIRST:
                total = tl.sum(tl.load(sums + blocks, mask=ok, other=0, cache_modifier=".cg"))
                tl.store(totals + row, total)
            else:
                total = tl.load(totals + row)
            limit = (_most_mass(top_p, total) / 17592186044416.0).to(tl.float32)
            is_over = (count >= top_k) | (mass >= limit * (1 + _SLACK))
            is_under = (count < top_k) & (mass < limit * (1 - _SLACK))
            pivots = tl.load(state + PIVOT + i)
            low = tl.maximum(low, tl.max(tl.where(is_over, pivots, low)))
            high = tl.minimum(high, tl.min(tl.where(is_under, pivots, high)))
            tl.debug_barrier()  # all have read the pivots
            place_pivots(state, low, high, PIVOTS)


@triton.jit
def _order(value):
    """Whole numbers that are in the same order as the floats."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def collect(
    logits, penalised, masks, rows, rows64, states, peaks, sums, counts, totals, candidates, fills, counters,
    logits_stride, width, num_tokens, num_words, num_blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, MOST: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Count what lies above the range that is left, collect what lies in it, and find the floor there."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    state = states + row * STATE
    if tl.load(state + MODE) == 2:
        fields = rows + row * _CHOICE_FIELDS
        temperature = tl.load(fields + _TEMPERATURE).to(tl.float32, bitcast=True)
        peak = tl.load(state + PEAK)
        low = tl.load(state + PIVOT)
        high = tl.load(state + HIGH)
        mine = candidates + row.to(tl.int64) * MOST
        at = row * num_blocks + block
        count = tl.full((), 0, tl.int32)
        mass = tl.full((), 0, tl.int64)
        if tl.load(peaks + at) >= low:
            value = allowed_scores(
                logits, penalised, masks, fields, state, block, logits_stride, width, num_tokens, num_words, BLOCK
            )
            weight = weights(temper(value, peak, temperature))
            count = tl.sum((value > high).to(tl.int32))
            mass = tl.sum(tl.where(value > high, weight, 0))
            inside = ((value >= low) & (value <= high)).to(tl.int32)
            of_words = tl.sum(inside, 1)
            found = tl.sum(of_words, 0)
            if found > 0:
                start = tl.atomic_add(fills + row, found, sem="relaxed")
                before = tl.cumsum(of_words, 0) - of_words
                i = start + before[:, None] + tl.cumsum(inside, 1) - 1
                tl.store(mine + i, value, mask=(inside > 0) & (i < MOST))
        tl.store(counts + at, count)
        tl.store(sums + at, mass)
        if is_last(counters + row, num_blocks):
            blocks = row * num_blocks + tl.arange(0, BLOCKS)
            ok = tl.arange(0, BLOCKS) < num_blocks
            count_above = tl.sum(tl.load(counts + blocks, mask=ok, other=0, cache_modifier=".cg"))
            mass_above = tl.sum(tl.load(sums + blocks, mask=ok, other=0, cache_modifier=".cg"))
            found = tl.load(fills + row, cache_modifier=".cg")
            top_k = tl.load(fields + _TOP_K)
            top_p = tl.load(rows64 + row * (_CHOICE_FIELDS // 2) + _HALF_TOP_P)
            limit = _most_mass(top_p, tl.load(totals + row))
            # F is false below `under`, or nothing is there; it is true at `over`.
            highest = _order(high)
            under = _order(low) - 1
            over = highest
            if found <= FEW:  # mostly: these stay in registers
                few = tl.load(
                    mine + tl.arange(0, FEW), mask=tl.arange(0, FEW) < found, other=high, cache_modifier=".cg"
                )
                few_order = tl.where(tl.arange(0, FEW) < found, _order(few), under)
                few_weight = weights(temper(few, peak, temperature))
                while over - under > 1:
                    middle = under + (over - under) // 2
                    count = count_above
                    mass = mass_above
                    if top_k < num_tokens:
                        count += tl.sum((few_order > middle).to(tl.int32))
                    if top_p < 1:
                        mass += tl.sum(tl.where(few_order > middle, few_weight, 0))
                    if (count < top_k) & (mass.to(tl.float64) < limit):
                        over = middle
                    else:
                        under = middle
            num_tiles = tl.where(found > MOST, num_blocks, tl.cdiv(found, BLOCK))
            while over - under > 1:
                middle = under + (over - under) // 2
                count = count_above
                mass = mass_above
                for tile in range(num_tiles):
                    if found > MOST:
                        value = allowed_scores(
                            logits, penalised, masks, fields, state, tile, logits_stride, width, num_tokens, num_words,
                            BLOCK,
                        )  # fmt: skip
                    else:
                        i = tile * BLOCK + tl.arange(0, BLOCK // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
                        value = tl.load(mine + i, mask=i < found, other=float("-inf"), cache_modifier=".cg")
                    order = _order(value)
                    above = (order > middle) & (order <= highest)
                    count += tl.sum(above.to(tl.int32))
                    mass += tl.sum(tl.where(above, weights(temper(value, peak, temperature)), 0))
                if (count < top_k) & (mass.to(tl.float64) < limit):
                    over = middle
                else:
                    under = middle
            key = over.to(tl.int32)
            floor = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
            least = tl.load(fields + _LEAST).to(tl.float32, bitcast=True)
            tl.store(state + FLOOR, tl.maximum(temper(floor, peak, temperature), least))
            tl.store(fills + row, 0)
