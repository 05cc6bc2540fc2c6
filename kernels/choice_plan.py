"""What choosing tokens on a GPU reads: a row of numbers for each choice, masks, and what was generated before."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# The numbers of a choice, int32 (bits of a float32 where it says so). -1: no such mask, or no penalties.
SOURCE = 0  # row of the logits
PLACE = 1  # row of the slot table
ALLOWED, SUPPRESSED, ENDS = 2, 3, 4  # rows of the masks; the last holds only while anything else is left
PENALISED = 5  # row of the penalties
TEMPERATURE = 6  # float32; 0: the likeliest token
TOP_K = 7  # `NO_TOP_K`: off
LEAST = 8  # float32: least tempered logit, the likeliest being 0, that min-p lets through
TOP_P, UNIFORM = 10, 12  # float64, two numbers each
CHOICE_FIELDS = 16
NO_TOP_K = 2**31 - 1

# The numbers of a row with penalties: row of the logits, its tokens' place and count; repetition and presence, float32.
PENALTY_FIELDS = 8


class ChoicePlan(NamedTuple):
    """R choices. Bit i of word j of a mask is token 32 j + i, and set where the token may be chosen."""

    rows: Tensor  # int32 [R, CHOICE_FIELDS]
    masks: Tensor  # int32 [M, W], 32 W >= the number of tokens; M may be 0
    penalties: Tensor  # int32 [P, PENALTY_FIELDS]; P may be 0
    tokens: Tensor  # int32 [N]: what the rows with penalties have generated
    reductions: Tensor  # float32 [N]: frequency penalty times how often
    draws: bool  # whether a row draws
    searches: bool  # whether a row that draws has top-k or top-p


@functools.lru_cache(maxsize=256)
def choice_fields(*, temperature: float, top_k: int, top_p: float, min_p: float, num_tokens: int) -> NDArray[np.int32]:
    """The numbers of a choice that stay the same from step to step: [CHOICE_FIELDS], read-only."""
    fields = np.zeros(CHOICE_FIELDS, dtype=np.int32)
    fields[[ALLOWED, SUPPRESSED, ENDS, PENALISED]] = -1
    if temperature > 0 and top_k != 1:
        # A tiny temperature must not round to 0, which would be another thing.
        fields.view(np.float32)[TEMPERATURE] = max(temperature, 1e-30)
    fields[TOP_K] = top_k if 0 < top_k < num_tokens else NO_TOP_K
    fields.view(np.float32)[LEAST] = _least_tempered(min_p)
    fields.view(np.float64)[TOP_P // 2] = top_p
    fields.setflags(write=False)
    return fields


def _least_tempered(min_p: float) -> np.float32:
    """The least float32 whose exponential is `min_p` or more."""
    if min_p <= 0:
        return np.float32(-np.inf)
    least = np.float32(math.log(min_p))
    while math.exp(least) < min_p:
        least = np.nextafter(least, np.float32(np.inf))
    below = np.nextafter(least, np.float32(-np.inf))
    return below if min_p < 1 and math.exp(below) >= min_p else least
