"""Norms, rotation with the write to the pool, activation and packed products against float64 formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lmnb.kernels import linear as linear_module
from lmnb.kernels.linear import linear, linear_reference, pack_weight
from lmnb.kernels.rms_norm import add_rms_norm, rms_norm
from lmnb.kernels.rotary_store import RotaryAngles, rotary_angles, rotary_store
from lmnb.kernels.silu_mul import silu_mul

pytestmark = pytest.mark.usefixtures("kernels")

RELATIVE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def random_tensor(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(got: Tensor, want: Tensor) -> None:
    """The root-mean-square error is small against the values themselves."""
    error = (got.double() - want).square().mean().sqrt() / want.square().mean().sqrt()
    assert got.shape == want.shape
    assert error < RELATIVE[got.dtype]


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("tokens", [1, 7])
def test_rms_norm(tokens: int, dtype: torch.dtype) -> None:
    x = random_tensor(tokens, 576, dtype=dtype) * 30
    weight = random_tensor(576, dtype=dtype, seed=1)
    wide = x.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(rms_norm(x, weight, 1e-5), want)


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_rms_norm_of_heads_with_a_weight_each(dtype: torch.dtype) -> None:
    # Heads of one projection: a slice of longer rows. 40 is no multiple of a vector's lanes.
    x, weight = random_tensor(5, 9, 40, dtype=dtype)[:, :6], random_tensor(6, 40, dtype=dtype, seed=1)
    want = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert_close(rms_norm(x, weight, 1e-6), want)


def test_rms_norm_does_not_overflow_float16() -> None:
    x = torch.full((1, 64), 3000.0, dtype=torch.float16)
    torch.testing.assert_close(rms_norm(x, torch.ones(64, dtype=torch.float16), 1e-6), torch.ones_like(x))


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_add_rms_norm(dtype: torch.dtype) -> None:
    x, residual = random_tensor(3, 64, dtype=dtype), random_tensor(3, 64, dtype=dtype, seed=1)
    weight = random_tensor(64, dtype=dtype, seed=2)
    before = residual.clone()
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert_close(total, x.double() + before.double())
    assert_close(normed, rms_norm(total, weight, 1e-5).double())


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_rotary_store(dtype: torch.dtype) -> None:
    num_slots, head_dim = 50, 16
    positions = torch.tensor([0, 5, 400])
    slots = torch.tensor([41, 3, 17])
    inv_freq = 1 / 100 ** (torch.arange(0, head_dim, 2) / head_dim)
    fused = random_tensor(3, 8, head_dim, dtype=dtype)  # 4 query, 2 key and 2 value heads of one projection
    keys = torch.full((num_slots, 2, head_dim), float("nan"), dtype=dtype)
    values = keys.clone()
    cos, sin = rotary_angles(positions, inv_freq, dtype)
    queries = rotary_store(fused[:, :6], fused[:, 6:], cos, sin, keys, values, slots)

    pairs = torch.complex(fused[:, :6, : head_dim // 2].double(), fused[:, :6, head_dim // 2 :].double())
    turned = pairs * torch.polar(torch.ones(1).double(), positions[:, None, None].double() * inv_freq.double())
    want = torch.cat((turned.real, turned.imag), -1)
    assert_close(queries, want[:, :4])
    assert_close(keys[slots], want[:, 4:])
    assert torch.equal(values[slots], fused[:, 6:])
    untouched = torch.ones(num_slots, dtype=torch.bool).index_fill_(0, slots, False)
    assert keys[untouched].isnan().all()
    assert values[untouched].isnan().all()


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
def test_silu_mul(dtype: torch.dtype) -> None:
    gate_up = random_tensor(40, 2 * 50, dtype=dtype) * 3
    gate_up[0, 0], gate_up[1, 1] = -200, 200
    before = gate_up.clone()
    gate, up = gate_up.double().chunk(2, -1)
    assert_close(silu_mul(gate_up), gate / (1 + (-gate).exp()) * up)
    assert torch.equal(gate_up, before)


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 17, 70])
@pytest.mark.parametrize("shape", [(96, 80), (5, 7)], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(shape: tuple[int, int], tokens: int, with_bias: bool, dtype: torch.dtype) -> None:
    x, weight = random_tensor(tokens, shape[1], dtype=dtype), random_tensor(*shape, dtype=dtype, seed=1)
    bias = random_tensor(shape[0], dtype=dtype, seed=2) if with_bias else None
    want = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert_close(linear(x, pack_weight(weight), bias), want)
    assert_close(linear_reference(x, weight, bias), want)


def test_linear_of_a_strided_input() -> None:
    x, weight = random_tensor(8, 256, dtype=torch.float32)[::2, :128], random_tensor(64, 128, dtype=torch.float32)
    assert_close(linear(x, pack_weight(weight)), x.double() @ weight.double().t())


def test_a_torch_without_packed_products_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise RuntimeError("not compiled with oneDNN")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse)
    linear_module._cpu_packing_works.cache_clear()
    try:
        weight = random_tensor(96, 80, dtype=torch.float32)
        packed = pack_weight(weight)
        assert not packed.is_mkldnn
        x = random_tensor(2, 80, dtype=torch.float32)
        assert_close(linear(x, packed), x.double() @ weight.double().t())
    finally:
        linear_module._cpu_packing_works.cache_clear()


def test_angles_looked_up_have_the_bits_of_those_computed() -> None:
    inv_freq = 1e4 ** -(torch.arange(0, 64, 2) / 64)
    angles = RotaryAngles(inv_freq, torch.bfloat16, context_tokens=700)
    for positions in ([0], [5, 699, 3], [*range(300)], [700], [1, 100_000]):
        got, want = angles(torch.tensor(positions)), rotary_angles(torch.tensor(positions), inv_freq, torch.bfloat16)
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
        assert all(one.is_contiguous() for one in got)
