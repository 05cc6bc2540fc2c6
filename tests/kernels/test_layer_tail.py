"""The one call behind attention gives the bits of its parts called one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lmnb.kernels import native
from lmnb.kernels.layer_tail import LayerTail, layer_tail
from lmnb.kernels.linear import Projection
from lmnb.kernels.quantized_linear import NativeProduct, random_quantized
from lmnb.kernels.rms_norm import add_rms_norm
from lmnb.kernels.silu_mul import silu_mul

HIDDEN, INNER, WIDTH = 96, 160, 128


def rows(count: int, size: int, seed: int) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def projection(outs: int, ins: int, bits: int, *, bias: bool) -> Projection:
    return Projection(NativeProduct(random_quantized(outs, ins, bits)), rows(1, outs, 9)[0] if bias else None)


@pytest.mark.parametrize("count", [1, 2, 17, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_bits_are_those_of_the_parts(count: int, bias: bool) -> None:
    if native.prepare() is None:
        pytest.skip(native.why_not())
    tail = LayerTail(
        out=projection(HIDDEN, WIDTH, 4, bias=bias),
        post_norm=rows(1, HIDDEN, 1)[0],
        gate_up=projection(2 * INNER, HIDDEN, 4, bias=bias),
        down=projection(HIDDEN, INNER, 8, bias=bias),
    )
    x, residual, next_norm = rows(count, WIDTH, 2), rows(count, HIDDEN, 3), rows(1, HIDDEN, 4)[0]
    before = residual.clone()
    middle, total = add_rms_norm(tail.out(x), residual, tail.post_norm, 1e-5)
    want = add_rms_norm(tail.down(silu_mul(tail.gate_up(middle))), total, next_norm, 1e-5)
    got = layer_tail(x, residual, tail, next_norm, 1e-5)
    assert want[0].float().std() > 0.1
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert torch.equal(residual, before)
