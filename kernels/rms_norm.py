"""Root-mean-square layer norm, alone or fused with the residual addition before it (Zhang & Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] scaled to unit root mean square over its last axis, times `weight` (broadcast against x)."""
    return rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Both results a decoder layer needs of x, residual [T, D]: the norm of `x + residual`, and that sum."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm in plain torch; the mean square is taken in float32, the result has x's dtype."""
    wide = x.float()  # squares overflow float16 and lose most digits in bfloat16
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight
