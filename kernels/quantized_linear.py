"""Products with a weight of 4- or 8-bit integers as a GGUF file stores them: groups of 32 inputs share a scale.

Q4_0, Q4_1: w = scale * q + minimum, q in 0..15; Q8_0: w = scale * q, q in -127..127. On a CPU a decoding step takes
as long as its weights take to read, and these are a quarter of bfloat16's. Inputs are bfloat16. A row's result is the
same to the last bit whatever it is computed beside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lmnb.kernels.native import native_kernels

GROUP = 32
_BLOCK, _COLUMN = 16, 4  # outputs of one block, and blocks of one column, of the native layout


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [out, in] as stored. `minimum` is there for 4 bits only."""

    integers: Tensor  # uint8 [out, in / 2], input 2 i in the low half of a byte; or int8 [out, in]
    scale: Tensor  # float16 [out, in / 32]
    minimum: Tensor | None  # float16 [out, in / 32]

    @property
    def bits(self) -> int:
        return 8 if self.minimum is None else 4

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in] of the weight it stands for."""
        return self.scale.shape[0], self.scale.shape[1] * GROUP

    def unpacked(self) -> Tensor:
        """The integers one by one: uint8 or int8 [out, in]."""
        if self.minimum is None:
            return self.integers
        return torch.stack((self.integers & 15, self.integers >> 4), -1).view(self.shape)

    def dequantized(self) -> Tensor:
        """The weight itself, float32 [out, in]."""
        groups = self.unpacked().view(self.shape[0], -1, GROUP) * self.scale.float()[..., None]
        if self.minimum is not None:
            groups = groups + self.minimum.float()[..., None]
        return groups.view(self.shape)


def quantize_groups(weight: Tensor) -> QuantizedWeight:
    """A weight [out, in] as Q8_0 would store it: 8-bit integers, and a scale for each group of 32 inputs. A group that
    holds NaN or infinity gets a scale that is not finite."""
    groups = weight.float().view(len(weight), -1, GROUP)
    scale = (groups.abs().amax(-1) / 127).half()
    divisor = torch.where(scale == 0, 1.0, scale.float())[..., None]
    integers = (groups / divisor).nan_to_num(0.0).round_().clamp_(-127, 127)  # the scale was rounded, perhaps down
    return QuantizedWeight(integers.to(torch.int8).flatten(1), scale, None)


def concatenated(weights: list[QuantizedWeight]) -> QuantizedWeight | None:
    """Weights of the same input as one, outputs one after the other; None if they are not of one kind."""
    if len({(weight.bits, weight.shape[1]) for weight in weights}) != 1:
        return None
    minima = [weight.minimum for weight in weights if weight.minimum is not None]
    return QuantizedWeight(
        torch.cat([weight.integers for weight in weights]),
        torch.cat([weight.scale for weight in weights]),
        torch.cat(minima) if minima else None,
    )


class QuantizedProduct(Protocol):
    """x [T, in] times a weight laid out for it, plus bias [out]: [T, out] in x's dtype, or in float32 if `wide` and it
    is computed so. `strict`: a row's bits depend on that row only, which is always so of the products here."""

    num_bytes: int

    def __call__(
        self, x: Tensor, bias: Tensor | None = None, *, wide: bool = False, strict: bool = False
    ) -> Tensor: ...


def pack_quantized(weight: QuantizedWeight, keep: Callable[[Tensor], Tensor] = torch.clone) -> QuantizedProduct | None:
    """Lay out `weight` for the fastest product that this machine has, in memory that `keep` chooses; None if it has
    none for its kind."""
    native = native_kernels(torch.empty(0, dtype=torch.bfloat16))
    if native is not None and _agrees(NativeProduct, weight.bits):
        return NativeProduct(weight, keep)
    if weight.bits == 4 and weight.shape[0] % _BLOCK == 0 and _agrees(TorchProduct, 4):
        return TorchProduct(weight)
    return None


class NativeProduct:
    """By the kernel in `quantized_linear.cpp`, where the layout is described: float32 sums of exact integers."""

    def __init__(self, weight: QuantizedWeight, keep: Callable[[Tensor], Tensor] = torch.clone) -> None:
        """`keep` gives the packed weight a place: see `HugePages`."""
        self._native = native_kernels(torch.empty(0, dtype=torch.bfloat16))
        self.bits, (self.num_outputs, self.num_inputs) = weight.bits, weight.shape
        self._packed = keep(_native_layout(weight))
        self.num_bytes = self._packed.numel()
        self.address = self._packed.data_ptr()

    def __call__(self, x: Tensor, bias: Tensor | None = None, *, wide: bool = False, strict: bool = False) -> Tensor:
        assert (x.dtype, *x.shape[1:]) == (torch.bfloat16, self.num_inputs)  # the kernel reads what it is told to
        x = x.contiguous()
        rows, native = len(x), self._native
        assert native is not None
        out = torch.empty(rows, self.num_outputs, dtype=torch.float32 if wide else torch.bfloat16)
        native.call(
            "quantized_linear", rows, x.data_ptr(), self.address, None if bias is None else bias.data_ptr(),
            out.data_ptr(), rows, self.num_inputs, self.num_outputs, self.bits, wide,
        )  # fmt: skip
        return out


class TorchProduct:
    """By torch's own int4 operator for a CPU, whose scales are bfloat16 (0.2 % off)."""

    def __init__(self, weight: QuantizedWeight) -> None:
        assert weight.minimum is not None
        scale = weight.scale.float()
        self._packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.unpacked().int(), 1)
        zero = weight.minimum.float() + 8 * scale  # the operator's integers are centred
        self._scales = torch.stack((scale, zero), -1).transpose(0, 1).contiguous().bfloat16()
        self.num_bytes = self._packed.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor, bias: Tensor | None = None, *, wide: bool = False, strict: bool = False) -> Tensor:
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), self._packed, GROUP, self._scales)
        if bias is not None:
            out = out + bias
        return out.float() if wide else out


@functools.cache
def _agrees(product: type[NativeProduct] | type[TorchProduct], bits: int) -> bool:
    """Whether the product works here and is right, alike for one row and for many: tried once. A matrix unit that is
    not right, or sums in another order than the kernels' lanes do, is left."""
    if _is_right(product, bits):
        return True
    native = native_kernels(torch.empty(0, dtype=torch.bfloat16))
    if product is not NativeProduct or native is None or native.why_no_matrix_unit():
        return False
    native.leave_matrix_unit()
    return _is_right(product, bits)


def _is_right(product: type[NativeProduct] | type[TorchProduct], bits: int) -> bool:
    """Tried on a weight of many groups, with inputs of all sizes, whose sums another order would change."""
    weight = random_quantized(64, 13 * GROUP, bits)
    x = torch.randn(2, 21, 13 * GROUP, generator=torch.Generator().manual_seed(1))
    x = (x[0] * torch.exp2(6 * x[1])).bfloat16()
    want = x.float() @ weight.dequantized().t()
    try:
        multiply = product(weight)
        got = multiply(x, wide=True)
        alike = all(torch.equal(multiply(x[:rows], wide=True), got[:rows]) for rows in (1, 2, 5, 8, 13))
    except (AttributeError, RuntimeError):  # no such operator, or another form of it
        return False
    return alike and bool((got - want).norm() < 0.01 * want.norm())


def random_quantized(outs: int, ins: int, bits: int, seed: int = 0) -> QuantizedWeight:
    """A weight like those of files, for trials."""
    generator = torch.Generator().manual_seed(seed)
    scale = (torch.rand(outs, ins // GROUP, generator=generator) * 0.02).half()
    if bits == 8:
        integers = torch.randint(-127, 128, (outs, ins), generator=generator).to(torch.int8)
        return QuantizedWeight(integers, scale, None)
    integers = torch.randint(0, 256, (outs, ins // 2), generator=generator).to(torch.uint8)
    return QuantizedWeight(integers, scale, (torch.randn(scale.shape, generator=generator) * 0.1).half())


def _native_layout(weight: QuantizedWeight) -> Tensor:
    """Columns of four blocks of 16 outputs (the last block filled up with zeros), group by group: uint8."""
    records = _records(weight)
    whole = len(records) // _COLUMN * _COLUMN
    columns = records[:whole].view(-1, _COLUMN, *records.shape[1:]).transpose(1, 2)
    return torch.cat((columns.flatten(), records[whole:].transpose(0, 1).flatten()))


def _records(weight: QuantizedWeight) -> Tensor:
    """Blocks of 16 outputs: uint8 [blocks, groups, record]."""
    outs, ins = weight.shape
    missing = -outs % _BLOCK

    def filled(tensor: Tensor) -> Tensor:
        return torch.cat((tensor, tensor.new_zeros(missing, tensor.shape[1]))) if missing else tensor

    def halves(tensor: Tensor) -> Tensor:
        return filled(tensor).view(-1, _BLOCK, ins // GROUP).transpose(1, 2).contiguous().view(torch.uint8)

    if weight.minimum is None:
        blocks = filled(weight.integers).view(torch.uint8).view(-1, _BLOCK, ins // GROUP, GROUP // 2, 2)
        return torch.cat((blocks.permute(0, 2, 3, 4, 1).flatten(2), halves(weight.scale)), -1)
    # [block, output, group, chunk, step]: bytes of two inputs; a lane takes one of the two inputs of all four steps.
    pairs = filled(weight.integers).view(-1, _BLOCK, ins // GROUP, 4, 4).permute(0, 2, 3, 1, 4)
    first, second = pairs & 15, pairs >> 4
    lanes = torch.stack((first, second), 4)  # [block, group, chunk, output, parity, step]
    packed = lanes[..., 0::2] | (lanes[..., 1::2] << 4)
    return torch.cat((packed.flatten(2), halves(weight.scale), halves(weight.minimum)), -1)
