"""Products with a weight of 8-bit numbers and one scale for each output, on a GPU.

w = scale * value, values being int8 (-127 to 127) or float8_e4m3fn. A decoding step takes as long as its weights take
to read, and these are half of bfloat16's. Activations, products and sums are as exact as with 16-bit weights: every
value is exact in bfloat16, and the scale is applied to the float32 sum. A CPU has integers of its own, see
`quantized_linear.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

STORED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
GROUP = 128  # inputs that lie together in a packed weight
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_ROWS_AT_A_TIME = 4096  # quantised at once: what that takes in float32 is returned before the next
# From so many rows on, operations decide and not bytes: the weight is unpacked, a piece at a time, for cuBLAS.
MANY_ROWS = 512
_PIECE = 1 << 24  # numbers of a piece: 32 MiB in bfloat16, which stay in the cache of a large GPU until they are read


@dataclass(frozen=True, slots=True)
class RowwiseWeight:
    """A weight [out, in] in 8 bits."""

    values: Tensor  # int8 or float8_e4m3fn [out, in]
    scale: Tensor  # float32 [out]

    def dequantized(self) -> Tensor:
        """The weight that it stands for, float32 [out, in]."""
        return self.values.float() * self.scale[:, None]


def quantize_rows(weights: Sequence[Tensor], kind: str, device: torch.device) -> RowwiseWeight:
    """Weights [out_i, in] of the same input, one after the other, in 8 bits on `device`; `kind` is one of `STORED`.

    A row that holds NaN or infinity gets a scale that is not finite: its results are not finite either.
    """
    stored, total = STORED[kind], sum(len(weight) for weight in weights)
    values = torch.empty(total, weights[0].shape[1], dtype=stored, device=device)
    scale = torch.empty(total, device=device)
    start = 0
    for weight in weights:
        for first in range(0, len(weight), _ROWS_AT_A_TIME):
            rows = weight[first : first + _ROWS_AT_A_TIME]
            stop = start + len(rows)
            values[start:stop], scale[start:stop] = _quantized(rows.to(device).float(), stored)
            start = stop
    return RowwiseWeight(values, scale)


def _quantized(weight: Tensor, stored: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = weight.abs().amax(-1) / _LARGEST[stored]
    scale = torch.where(scale == 0, 1.0, scale)
    values = weight / scale[:, None]
    if stored is torch.int8:
        values = values.nan_to_num(0.0).round_()  # an integer has no NaN, but the row's scale tells
    return values.to(stored), scale


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A weight as the kernels read it: words of four numbers, in groups of inputs, the last one filled up with zeros.

    Byte j of word i of group g is input `4 run` g + `run` j + i.
    """

    words: Tensor  # int32 [out, groups * run]
    scale: Tensor  # float32 [out]
    size: int  # inputs
    run: int
    is_float8: bool


def packed(weight: RowwiseWeight, group: int = GROUP) -> PackedRows:
    """`weight` laid out for the kernels, `group` inputs together."""
    num_out, size = weight.values.shape
    values = functional.pad(weight.values.view(torch.uint8), (0, -size % group))
    words = values.view(num_out, -1, 4, group // 4).transpose(2, 3).contiguous().view(torch.int32)
    return PackedRows(words.view(num_out, -1), weight.scale, size, group // 4, weight.values.dtype is not torch.int8)


class RowwiseProduct:
    """x [T, in] times a weight in 8 bits. Implements `QuantizedProduct`, in any dtype.

    Which kernel runs is settled by the number of rows alone. `scratch`: room for a piece of the weight in x's dtype; a
    model's products share it, for they run one after the other.
    """

    def __init__(self, weight: RowwiseWeight, scratch: Tensor) -> None:
        self._weight, self._scratch = packed(weight), scratch
        self.num_bytes = self._weight.words.nbytes + self._weight.scale.nbytes

    def __call__(self, x: Tensor, bias: Tensor | None = None, *, wide: bool = False, strict: bool = False) -> Tensor:
        """[T, out] in x's dtype, `wide` or not: the sums are rounded where they are made."""
        from lmnb.kernels.rowwise_linear_triton import rowwise_matmul, rowwise_matvec, strict_rowwise_matmul

        if strict:
            return strict_rowwise_matmul(x.contiguous(), self._weight, bias)
        if len(x) == 1:
            return rowwise_matvec(x, self._weight, bias)
        if len(x) < MANY_ROWS:
            return rowwise_matmul(x.contiguous(), self._weight, bias)
        return self.by_pieces(x, bias)

    def by_pieces(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The same by cuBLAS, with a piece of the weight unpacked at a time."""
        from lmnb.kernels.rowwise_linear_triton import unpack_rows

        num_out, size = len(self._weight.words), self._weight.size
        out = x.new_empty(len(x), num_out)
        step = rows_of_a_piece(num_out, size, self._scratch.numel())
        for start in range(0, num_out, step):
            stop = min(start + step, num_out)
            piece = self._scratch[: (stop - start) * size].view(-1, size)
            unpack_rows(self._weight, start, piece)
            if bias is None:
                torch.mm(x, piece.t(), out=out[:, start:stop])
            else:
                torch.addmm(bias[start:stop], x, piece.t(), out=out[:, start:stop])
        return out


def new_scratch(largest_input: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What `RowwiseProduct` needs, for weights of at most `largest_input` inputs."""
    return torch.empty(max(_PIECE, 128 * largest_input), dtype=dtype, device=device)


def rows_of_a_piece(num_out: int, size: int, room: int) -> int:
    """Outputs to unpack at once: pieces of about the same size, in whole tiles of a product."""
    most = max(1, room // size)
    pieces = -(-num_out // most)
    even = -(-num_out // pieces)
    return min(most, -(-even // 128) * 128)
