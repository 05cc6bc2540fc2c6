"""Root-mean-square layer norm, alone or fused with the residual addition before it (Zhang & Sennrich, 2019)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from lmnb.kernels.dispatch import uses_triton


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] scaled to unit root mean square over its last axis, times `weight` (broadcast against x)."""
    if uses_triton(x):
        from lmnb.kernels.rms_norm_triton import rms_norm_triton

        return rms_norm_triton(x, weight, eps)
    return rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Both results a decoder layer needs of x, residual [T, D]: the norm of `x + residual`, and that sum."""
    if uses_triton(x):
        from lmnb.kernels.rms_norm_triton import add_rms_norm_triton

        return add_rms_norm_triton(x, residual, weight, eps)
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm in plain torch, which squares and averages in float32 whatever x's dtype; the result has x's dtype."""
    if weight.dim() == 1:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    return functional.rms_norm(x, (x.shape[-1],), None, eps) * weight
