"""All of a decoder layer behind its attention, and the norm that comes next: three products, two norms, an activation.

One call of the compiled kernels where they have all the products; elsewhere, and to the last bit the same, its parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmnb.kernels.linear import Projection
from lmnb.kernels.native import NativeKernels, native_kernels
from lmnb.kernels.quantized_linear import NativeProduct
from lmnb.kernels.rms_norm import add_rms_norm
from lmnb.kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class LayerTail:
    """The weights of a layer behind its attention."""

    out: Projection
    post_norm: Tensor  # [hidden]
    gate_up: Projection
    down: Projection


def layer_tail(x: Tensor, residual: Tensor, tail: LayerTail, next_norm: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """From attention's output x [T, Hq * D] and residual [T, hidden]: the next layer's normed input, and residual."""
    native = native_kernels(x)
    if native is not None and all(isinstance(p.weight, NativeProduct) for p in (tail.out, tail.gate_up, tail.down)):
        return _layer_tail_native(native, x.contiguous(), residual.contiguous(), tail, next_norm, eps)
    x, residual = add_rms_norm(tail.out(x), residual, tail.post_norm, eps)
    x = tail.down(silu_mul(tail.gate_up(x)))
    return add_rms_norm(x, residual, next_norm, eps)


def _layer_tail_native(
    native: NativeKernels, x: Tensor, residual: Tensor, tail: LayerTail, next_norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    normed, total = torch.empty_like(residual), torch.empty_like(residual)
    out, gate_up, down = tail.out.weight, tail.gate_up.weight, tail.down.weight
    assert isinstance(out, NativeProduct)
    assert isinstance(gate_up, NativeProduct)
    assert isinstance(down, NativeProduct)
    rows, width = x.shape
    native.call(
        "layer_tail", rows, x.data_ptr(), residual.data_ptr(), out.address, tail.out.bias_address,
        tail.post_norm.data_ptr(), gate_up.address, tail.gate_up.bias_address, down.address, tail.down.bias_address,
        next_norm.data_ptr(), normed.data_ptr(), total.data_ptr(), rows, width, residual.shape[1], down.num_inputs,
        out.bits, gate_up.bits, down.bits, eps,
    )  # fmt: skip
    return normed, total
