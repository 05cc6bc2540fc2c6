"""`log_sums` in plain torch; in Triton it is checked by `triton_checks.py`."""

from __future__ import annotations

import math

import pytest
import torch

from lmnb.kernels.log_sums import log_sums_reference


@pytest.mark.parametrize("width", [7, 49_152, 50_257])
def test_a_rows_bits_are_its_own(width: int) -> None:
    logits = torch.randn(5, width, generator=torch.Generator().manual_seed(0)) * 4
    masks = torch.randint(-(2**31), 2**31, (2, -(-width // 32)), generator=torch.Generator().manual_seed(1)).int()
    numbers = torch.tensor([0, 1, 1, 0, 1])
    together = log_sums_reference(logits, torch.arange(5))
    of_masks = log_sums_reference(logits, torch.arange(5), masks, numbers, width - 2)
    for i in range(5):
        alone = torch.tensor([i])
        assert torch.equal(log_sums_reference(logits, alone), together[i : i + 1])
        assert torch.equal(log_sums_reference(logits, alone, masks, numbers[i : i + 1], width - 2), of_masks[i : i + 1])


def test_what_they_say() -> None:
    logits = torch.tensor([[math.log(2), 0.0, -math.inf, 5.0]])
    source, mask = torch.tensor([0]), torch.tensor([[0b0111]], dtype=torch.int32)
    peak, log_sum = log_sums_reference(logits, source)[0].tolist()
    assert peak == 5
    assert log_sum == pytest.approx(math.log1p(3 * math.exp(-5)))
    peak, log_sum = log_sums_reference(logits, source, mask, source, 4)[0].tolist()
    assert peak + log_sum == pytest.approx(math.log(3))
    peak, log_sum = log_sums_reference(logits, source, mask, source, 1)[0].tolist()
    assert peak + log_sum == pytest.approx(math.log(2))


def test_no_rows() -> None:
    none = torch.empty(0, dtype=torch.int64)
    masks = torch.zeros(1, 2, dtype=torch.int32)
    assert log_sums_reference(torch.randn(3, 40), none).shape == (0, 2)
    assert log_sums_reference(torch.randn(3, 40), none, masks, none, 40).shape == (0, 2)
