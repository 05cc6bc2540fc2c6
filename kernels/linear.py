"""Linear layers on weights laid out once for the device: `pack_weight` at load time, `linear` in every step.

On a CPU, oneDNN multiplies by a weight in its own blocked layout about twice as fast as by a plain matrix at
the batch sizes of decoding; a plain weight would be rearranged on every call. Anywhere else a packed weight is
the plain weight.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lmnb.kernels.dispatch import uses_triton
from lmnb.kernels.quantized_linear import QuantizedProduct

# Below 64x64 the layout cannot pay for itself, and tiny test models stay on the plain path's exact numbers.
_MIN_PACKED_ELEMENTS = 64 * 64
_LONG_ROW = 1024


@functools.cache
def _cpu_packing_works(dtype: torch.dtype) -> bool:
    """Whether this torch build has oneDNN's packed linear for `dtype` on this CPU: tried once on a small product."""
    try:
        weight = (torch.arange(64 * 64) % 7 - 3).reshape(64, 64).to(dtype)
        x = (torch.arange(2 * 64) % 5 - 2).reshape(2, 64).to(dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        got = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return bool(torch.equal(got.float(), x.float() @ weight.float().t()))  # small integers: exact in any dtype
    except (AttributeError, RuntimeError):  # no such operator, or not for this dtype on this CPU
        return False


def pack_weight(weight: Tensor) -> Tensor:
    """Lay out `weight` [out, in] for `linear`. The result is opaque: only `linear` may read it."""
    on_cpu = weight.device.type == "cpu"
    if (
        on_cpu
        and not uses_triton(weight)
        and weight.numel() >= _MIN_PACKED_ELEMENTS
        and _cpu_packing_works(weight.dtype)
    ):
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return packed
    return weight.contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, strict: bool = False) -> Tensor:
    """x [T, in] times a weight from `pack_weight`, plus bias [out] if there is one: [T, out] in x's dtype. `strict`,
    where Triton computes: a row's bits depend on that row only."""
    if strict and uses_triton(x):
        from lmnb.kernels.strict_matmul_triton import strict_matmul

        return strict_matmul(x, weight, bias)
    if weight.is_mkldnn:
        # oneDNN sums long rows in another order for one row of x than for several; as one of two rows, a request's
        # products are the same alone and in a batch. It costs nothing: reading the weight is what takes the time.
        alone = x.shape[0] == 1 and x.shape[1] >= _LONG_ROW
        rows = x.expand(2, -1).contiguous() if alone else x.contiguous()
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return out[:1] if alone else out
    if x.shape[0] == 1 and uses_triton(x):
        from lmnb.kernels.matvec_triton import matvec

        return matvec(x, weight, bias)
    return linear_reference(x, weight, bias)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same product on a plain weight [out, in]."""
    return functional.linear(x, weight, bias)


@dataclass(frozen=True, slots=True)
class Projection:
    """A weight laid out by `pack_weight`, or a product with one in fewer bits; and its bias."""

    weight: Tensor | QuantizedProduct
    bias: Tensor | None

    def __call__(self, x: Tensor, *, wide: bool = False, strict: bool = False) -> Tensor:
        """x [T, in] -> [T, out], in x's dtype; with `wide`, in float32 if that is how it is computed. `strict`: see
        `linear`."""
        if isinstance(self.weight, Tensor):
            return linear(x, self.weight, self.bias, strict=strict)
        return self.weight(x, self.bias, wide=wide, strict=strict)

    @property
    def bias_address(self) -> int | None:
        return None if self.bias is None else self.bias.data_ptr()
