"""GGUF's blocks of 32 integers taken apart: Q4_0, Q4_1 and Q8_0, the kinds that lmnb computes with as they are."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmnb.kernels.quantized_linear import QuantizedWeight

# Bytes of a block: float16 scale (and minimum), then 16 bytes whose low halves are the first 16 integers, or 32 bytes.
_BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def stored_integers(data: NDArray[np.uint8], kind: str) -> QuantizedWeight | None:
    """A matrix's rows of blocks, uint8 [out, bytes], as integers; None for a kind that is not computed with."""
    size = _BLOCK_BYTES.get(kind)
    if size is None or data.ndim != 2:
        return None
    blocks = torch.from_numpy(np.array(data)).view(len(data), -1, size)
    scale = _float16(blocks, 0)
    if kind == "Q8_0":
        return QuantizedWeight(blocks[..., 2:].contiguous().view(torch.int8).flatten(1), scale, None)
    # Q4_0 stores q + 8: its minimum, -8 scale, is exact (a power of two) unless it leaves float16's range.
    minimum = -8 * scale if kind == "Q4_0" else _float16(blocks, 2)
    if not bool(minimum.isfinite().all()):
        return None
    halves = blocks[..., size - 16 :]
    integers = torch.cat((halves & 15, halves >> 4), -1)  # [out, groups, 32] in order of the inputs
    pairs = integers[..., 0::2] | (integers[..., 1::2] << 4)
    return QuantizedWeight(pairs.flatten(1), scale, minimum)


def _float16(blocks: Tensor, at: int) -> Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)
