"""float8 in plain torch: rounding, and pools that store it."""

from __future__ import annotations

import pytest
import torch

from lmnb.kernels.fp8 import FP8, read_rows, store_rows, to_fp8
from lmnb.kernels.rotary_store import rotary_angles, rotary_store


def test_rounding_keeps_to_the_range_and_to_nan() -> None:
    x = torch.tensor([0.0, -0.0, 1.0, 1.0624, 1.0625, 1.0626, 448.0, 449.0, 1e9, float("inf"), -float("inf"), 1e-9])
    expected = [0.0, -0.0, 1.0, 1.0, 1.0, 1.125, 448.0, 448.0, 448.0, 448.0, -448.0, 0.0]
    assert to_fp8(x).float().tolist() == expected
    assert to_fp8(torch.tensor([float("nan")])).float().isnan().all()


def test_the_error_is_what_the_docstring_says() -> None:
    x = torch.cat((torch.linspace(-448, 448, 100_001), torch.logspace(-6, 0, 50_001)))
    off = (to_fp8(x).float() - x).abs()
    small = x.abs() < 1 / 64
    assert (off[~small] / x[~small].abs()).max() <= 1 / 16
    assert off[small].max() <= 1 / 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_come_back_as_they_were_rounded(dtype: torch.dtype) -> None:
    rows = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    slots = torch.tensor([7, 0, 3, 9, 4])
    pool = torch.full((10, 2, 8), float("nan")).to(FP8)
    store_rows(pool, slots, rows)
    assert torch.equal(read_rows(pool, slots, dtype), to_fp8(rows).to(dtype))
    rest = torch.tensor([1, 2, 5, 6, 8])
    assert read_rows(pool, rest, dtype).isnan().all()
    plain = torch.zeros(10, 2, 8, dtype=dtype)
    store_rows(plain, slots, rows)
    assert torch.equal(read_rows(plain, slots, dtype), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_stores_what_a_plain_pool_gets_but_rounded(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(4, 8, 64, generator=generator).to(dtype)
    cos, sin = rotary_angles(torch.tensor([0, 5, 300, 9]), 1 / 10000 ** torch.linspace(0, 0.9, 32), dtype)
    slots = torch.tensor([3, 1, 0, 2])
    plain = [torch.zeros(4, 2, 64, dtype=dtype) for _ in range(2)]
    rounded = [pool.to(FP8) for pool in plain]
    queries = [rotary_store(qkv[:, :6].clone(), qkv[:, 6:], cos, sin, *pools, slots) for pools in (plain, rounded)]
    # The compiled kernel of a plain pool rounds the rotation once, and torch its two products as well.
    bound = 2**-6 if dtype is torch.bfloat16 else 1e-6
    assert torch.allclose(queries[0], queries[1], rtol=bound, atol=bound)
    for pool, in_8_bits in zip(plain, rounded, strict=True):
        assert (to_fp8(pool).float() != in_8_bits.float()).float().mean() < 0.02
