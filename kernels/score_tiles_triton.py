# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, operator, attr-defined"
"""Tiles of edited logits in Triton: what penalties, masks and bans leave, as every pass over a row computes it anew.

A tile is [BLOCK / 32, 32]: a row of it is one word of a mask. NaN counts as infinity, so that it is noticed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels import choice_plan as plan

BLOCK = 2048  # tokens of a tile

_SOURCE = tl.constexpr(plan.SOURCE)
_ALLOWED = tl.constexpr(plan.ALLOWED)
_SUPPRESSED = tl.constexpr(plan.SUPPRESSED)
_PENALISED = tl.constexpr(plan.PENALISED)
_PENALTY_FIELDS = tl.constexpr(plan.PENALTY_FIELDS)
_ONE = tl.constexpr(17592186044416.0)  # 2^44: the weight of the likeliest token


@triton.jit
def tile_columns(block, BLOCK: tl.constexpr):
    """The tokens of a tile."""
    return block * BLOCK + tl.arange(0, BLOCK // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]


@triton.jit
def masked(value, masks, mask, block, num_words, BLOCK: tl.constexpr):
    """A tile in which tokens that the mask (-1: none) forbids are minus infinity."""
    if mask >= 0:
        word = block * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
        bits = tl.load(masks + mask.to(tl.int64) * num_words + word, mask=word < num_words, other=0)
        value = tl.where(((bits[:, None] >> tl.arange(0, 32)[None, :]) & 1) != 0, value, float("-inf"))
    return value


@triton.jit
def edited_scores(
    logits, penalised, masks, fields, block, logits_stride, width, num_tokens, num_words, BLOCK: tl.constexpr
):  # fmt: skip
    """A tile of a row's scores, float32: minus infinity for what is no token or forbidden, `ENDS` excepted. `width`:
    how many logits there are, which is mostly a rounder number than that of the tokens."""
    columns = tile_columns(block, BLOCK)
    copy = tl.load(fields + _PENALISED)
    if copy >= 0:
        at = copy.to(tl.int64) * num_words * 32
        value = tl.load(penalised + at + columns, mask=columns < num_words * 32, other=float("-inf"))
    else:
        at = tl.load(fields + _SOURCE).to(tl.int64) * logits_stride
        value = tl.load(logits + at + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)
    value = tl.where(columns < num_tokens, value, float("-inf"))
    value = masked(value, masks, tl.load(fields + _ALLOWED), block, num_words, BLOCK)
    return masked(value, masks, tl.load(fields + _SUPPRESSED), block, num_words, BLOCK)


@triton.jit
def temper(value, peak, temperature):
    """(value - peak) / temperature, rounded as a CPU does, so that what is equal there is equal here. It is -64 at the
    least, which weighs nothing: to divide infinities takes several times as long."""
    return tl.math.div_rn(tl.maximum(value - peak, -64.0 * temperature), temperature)


@triton.jit
def weights(tempered):
    """exp(tempered) for values up to 0, in units of 2^-44: whole numbers, so that sums do not depend on their order,
    and that of 2^18 tokens fits in 63 bits."""
    return (tl.exp(tempered) * _ONE).to(tl.int64)


@triton.jit
def is_last(counter, num_programs):
    """Whether this is the last of the programs that share a counter; what all have stored is then seen here."""
    tl.debug_barrier()
    is_it = tl.atomic_add(counter, 1, sem="acq_rel") == num_programs - 1
    if is_it:
        tl.store(counter, 0)
    tl.debug_barrier()
    return is_it


@triton.jit
def _penalise(
    logits, penalties, tokens, reductions, penalised, logits_stride, num_tokens, row_stride, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    block = tl.program_id(1)
    fields = penalties + row * _PENALTY_FIELDS
    source = logits + tl.load(fields).to(tl.int64) * logits_stride
    target = penalised + row.to(tl.int64) * row_stride
    columns = block * BLOCK + tl.arange(0, BLOCK)
    ok = columns < num_tokens
    tl.store(target + columns, tl.load(source + columns, mask=ok, other=0.0).to(tl.float32), mask=ok)
    tl.debug_barrier()  # what follows overwrites some of it
    start = tl.load(fields + 1)
    count = tl.load(fields + 2)
    repetition = tl.load(fields + 3).to(tl.float32, bitcast=True)
    presence = tl.load(fields + 4).to(tl.float32, bitcast=True)
    for begin in range(0, count, 256):
        i = begin + tl.arange(0, 256)
        token = tl.load(tokens + start + i, mask=i < count, other=-1)
        mine = (token >= block * BLOCK) & (token < tl.minimum(block * BLOCK + BLOCK, num_tokens))
        old = tl.load(source + token, mask=mine, other=0.0).to(tl.float32)
        new = tl.where(old > 0, tl.math.div_rn(old, repetition), old * repetition)
        new = new - tl.load(reductions + start + i, mask=mine, other=0.0) - presence
        tl.store(target + token, new, mask=mine)


def penalise(logits: Tensor, choices: plan.ChoicePlan, num_tokens: int, penalised: Tensor) -> None:
    """Write the scores, after penalties, of each row that has some to its row of `penalised`, float32 [P, 32 W]."""
    _penalise[(len(choices.penalties), triton.cdiv(num_tokens, BLOCK))](
        logits, choices.penalties, choices.tokens, choices.reductions, penalised, logits.stride(0), num_tokens,
        penalised.stride(0), BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
