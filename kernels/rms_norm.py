"""Root-mean-square layer norm, alone or fused with the residual addition before it (Zhang & Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lmnb.kernels.dispatch import uses_triton
from lmnb.kernels.native import NativeKernels, native_kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] scaled to unit root mean square over its last axis, times `weight` (broadcast against x)."""
    if uses_triton(x):
        from lmnb.kernels.rms_norm_triton import rms_norm_triton

        return rms_norm_triton(x, weight, eps)
    native = native_kernels(x)
    if native is not None and _rows_are_whole(x):
        return _rms_norm_native(native, x, weight, eps)
    return rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Both results a decoder layer needs of x, residual [T, D]: the norm of `x + residual`, and that sum."""
    if uses_triton(x):
        from lmnb.kernels.rms_norm_triton import add_rms_norm_triton

        return add_rms_norm_triton(x, residual, weight, eps)
    native = native_kernels(x)
    if native is not None:
        return _add_rms_norm_native(native, x.contiguous(), residual.contiguous(), weight, eps)
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm in plain torch, which squares and averages in float32 whatever x's dtype; the result has x's dtype."""
    if weight.dim() == 1:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    return functional.rms_norm(x, (x.shape[-1],), None, eps) * weight


def _rows_are_whole(x: Tensor) -> bool:
    """Whether x [T, D] or [T, H, D] is T runs of contiguous elements, as the slices of a projection are."""
    return x.stride(-1) == 1 and (x.dim() == 2 or (x.dim() == 3 and x.stride(1) == x.shape[2]))


def _rms_norm_native(native: NativeKernels, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    rows, size = x.shape[0], x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    native.call(
        "rms_norm", rows, x.data_ptr(), None, weight.data_ptr(), None, out.data_ptr(),
        rows, heads, x.stride(0), size, weight.numel() // size, eps,
    )  # fmt: skip
    return out


def _add_rms_norm_native(
    native: NativeKernels, x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    out, total = torch.empty_like(x), torch.empty_like(x)
    rows, size = x.shape
    native.call(
        "rms_norm", rows, x.data_ptr(), residual.data_ptr(), weight.data_ptr(), total.data_ptr(), out.data_ptr(),
        rows, 1, size, size, 1, eps,
    )  # fmt: skip
    return out, total
