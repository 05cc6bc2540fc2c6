"""Scores under masks, by torch's operators and by the compiled kernels, against a loop over tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmnb.kernels.masked_scores import Bitmask, forbid_masked, likeliest, unpack_bitmask

pytestmark = pytest.mark.usefixtures("kernels")


def bitmask(allowed: np.ndarray, num_words: int) -> Bitmask:
    bits = np.zeros(num_words * 32, dtype=bool)
    bits[: len(allowed)] = allowed[: len(bits)]
    return np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 33, 200, 1007])
@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_likeliest_and_forbidden(num_rows: int, num_tokens: int) -> None:
    rng = np.random.default_rng(num_tokens * 10 + num_rows)
    # Rows of a wider table; few values, so that some are alike; what is not allowed may be anything.
    wide = torch.from_numpy(rng.integers(-9, 9, (num_rows, num_tokens + 5)).astype(np.float32))
    scores = wide[:, :num_tokens]
    num_words = -(-num_tokens // 32) - (num_tokens > 100)  # the last tokens may have no bit
    masks: list[Bitmask | None] = []
    want_scores = scores.double().numpy()
    for row in range(num_rows):
        if row % 3 == 1:
            masks.append(None)
            continue
        allowed = rng.random(num_tokens) < 0.3
        allowed[32 * num_words :] = False
        masks.append(bitmask(allowed, num_words))
        scores[row, torch.from_numpy(~allowed)] = torch.tensor([math.nan, math.inf])[row % 2]
        want_scores[row, ~allowed] = -math.inf
    before = wide.clone()
    chosen, best = likeliest(scores, masks)
    assert torch.equal(wide.nan_to_num(77.0), before.nan_to_num(77.0)), "nothing is written"
    assert best.tolist() == want_scores.max(axis=1).tolist()
    for row in range(num_rows):
        if math.isfinite(best[row]):
            assert chosen[row] == want_scores[row].argmax(), "of those that are alike the first"
    forbid_masked(scores, masks)
    assert scores.double().numpy().tolist() == want_scores.tolist()
    assert torch.equal(wide[:, num_tokens:], before[:, num_tokens:])


def test_no_token_and_no_number() -> None:
    scores = torch.tensor([[1.0, 2.0], [1.0, math.nan], [math.nan, 3.0], [-math.inf, -math.inf]])
    masks = [bitmask(np.array(allowed), 1) for allowed in ([False, False], [True, True], [False, True])]
    chosen, best = likeliest(scores, [*masks, None])
    assert best[0] == -math.inf
    assert best[1].isnan()
    assert (chosen[2], best[2]) == (1, 3.0)
    assert best[3] == -math.inf
    assert set(chosen.tolist()) <= {0, 1}


@settings(max_examples=50, deadline=None)
@given(num_tokens=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
def test_bitmask_bits_are_tokens(num_tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    allowed = rng.random(num_tokens) < 0.5
    mask = bitmask(allowed, -(-num_tokens // 32))
    got = unpack_bitmask(torch.from_numpy(np.stack([mask] * 2)), num_tokens)
    assert got.shape == (2, num_tokens)
    assert got[1].tolist() == allowed.tolist()
