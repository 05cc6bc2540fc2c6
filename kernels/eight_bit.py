"""8-bit weights made at load from others: which product a device has for them, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmnb.kernels.dispatch import INTERPRETED, triton_works
from lmnb.kernels.native import prepare, why_not
from lmnb.kernels.quantized_linear import GROUP, QuantizedProduct, pack_quantized, quantize_groups, random_quantized
from lmnb.kernels.rowwise_linear import STORED, RowwiseProduct, new_scratch, quantize_rows

KINDS = tuple(STORED)


class EightBitWeights:
    """Makes the products of one model. `kind`: "int8", or "fp8" (float8_e4m3fn; on a GPU only).

    On a GPU a scale stands for an output's whole row; on a CPU, for 32 of its inputs. The output layer stays as it is
    with "fp8": it would double the logits' error (`python -m benchmarks quantization`).
    """

    def __init__(self, kind: str, dtype: torch.dtype, device: torch.device) -> None:
        """`refusal` must have none of it."""
        self.kind, self.takes_head = kind, kind == "int8"
        self._dtype, self._device = dtype, device
        self._scratch: Tensor | None = None

    @property
    def note(self) -> str:
        """For people."""
        return f"8-bit weights ({self.kind})"

    def product(self, weights: list[Tensor], keep: Callable[[Tensor], Tensor] = torch.clone) -> QuantizedProduct:
        """The product with `weights` [out_i, in], one after the other. `keep`: a place for them in a CPU's memory, see
        `HugePages`. ValueError for a size that has no such product."""
        size = weights[0].shape[1]
        if _by_triton(self._device):
            if self._scratch is None or self._scratch.numel() < size * 128:
                self._scratch = new_scratch(size, self._dtype, self._device)
            return RowwiseProduct(quantize_rows(weights, self.kind, self._device), self._scratch)
        if size % GROUP:
            raise ValueError(f"layers of {size} inputs, which are no groups of {GROUP}")
        product = pack_quantized(quantize_groups(torch.cat(weights)), keep)
        assert product is not None, "`refusal` says so"
        return product


def refusal(kind: str, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why there can be no such weights on `device`, as the end of a sentence; None if there can."""
    if _by_triton(device):
        return None
    if device.type == "cuda":
        return "it needs Triton, and a GPU of compute capability 8.0 or more"
    if kind != "int8":
        return f"{kind} is for a GPU; on a CPU there is quantization='int8'"
    if dtype is not torch.bfloat16:
        return "on a CPU it computes in bfloat16"
    prepare()
    if pack_quantized(random_quantized(GROUP, GROUP, 8)) is None:
        return f"this machine has no product for it: {why_not() or 'the compiled kernels are wrong here'}"
    return None


def _by_triton(device: torch.device) -> bool:
    return INTERPRETED or (device.type == "cuda" and triton_works())
