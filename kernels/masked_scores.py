"""Scores of a vocabulary under the masks of grammars: the likeliest token that is allowed, and all that are not.

A mask is a row of int32 words: bit i of word j is token 32 j + i, and tokens beyond the words are not allowed. On a
GPU with Triton other kernels do this, see `choose_triton.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmnb.kernels.native import NativeKernels, prepared_kernels

Bitmask = NDArray[np.int32]


def likeliest(scores: Tensor, bitmasks: Sequence[Bitmask | None]) -> tuple[Tensor, Tensor]:
    """The likeliest allowed token of each row of `scores`, float32 [R, V], and its score: int64 [R] and float32 [R].

    `bitmasks`: one a row, None where all is allowed. The score is minus infinity where none is, and NaN where an
    allowed one is NaN; the token then means nothing.
    """
    native = _native(scores, bitmasks)
    if native is None:
        return likeliest_reference(scores, bitmasks)
    chosen = torch.empty(len(scores), dtype=torch.int64)
    best = torch.empty(len(scores), dtype=torch.float32)
    masks, words = _addresses(bitmasks)
    native.call(
        "likeliest", len(scores), scores.data_ptr(), masks.ctypes.data, chosen.data_ptr(), best.data_ptr(),
        len(scores), scores.shape[1], scores.stride(0), words,
    )  # fmt: skip
    return chosen, best


def likeliest_reference(scores: Tensor, bitmasks: Sequence[Bitmask | None]) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    if any(mask is not None for mask in bitmasks):
        scores = scores.clone()
        forbid_masked_reference(scores, bitmasks)
    chosen = scores.argmax(dim=-1)
    return chosen, scores.gather(1, chosen[:, None]).squeeze(1)


def forbid_masked(scores: Tensor, bitmasks: Sequence[Bitmask | None]) -> None:
    """Minus infinity in place of the scores, float32 [R, V], that the rows' masks do not allow."""
    native = _native(scores, bitmasks)
    if native is None:
        forbid_masked_reference(scores, bitmasks)
        return
    masks, words = _addresses(bitmasks)
    native.call(
        "forbid_masked", len(scores), scores.data_ptr(), masks.ctypes.data, len(scores), scores.shape[1],
        scores.stride(0), words,
    )  # fmt: skip


def forbid_masked_reference(scores: Tensor, bitmasks: Sequence[Bitmask | None]) -> None:
    """The same in plain torch."""
    masks = {row: mask for row, mask in enumerate(bitmasks) if mask is not None}
    # On a CPU one row, which fits in its cache, is several times quicker than all.
    blocks = [[row] for row in masks] if scores.device.type == "cpu" else [[*masks]] * bool(masks)
    for block in blocks:
        words = torch.from_numpy(np.stack([masks[row] for row in block])).to(scores.device)
        allowed = unpack_bitmask(words, scores.shape[1])
        scores[block] = scores[block].masked_fill_(~allowed, -torch.inf)


def unpack_bitmask(words: Tensor, num_tokens: int) -> Tensor:
    """Bool [R, num_tokens], true where the bit of the token is set, from int32 words [R, W]."""
    octets = words.contiguous().view(torch.uint8)
    weights = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=words.device)
    allowed = (octets.unsqueeze(-1) & weights).ne(0).flatten(1)[:, :num_tokens]
    missing = num_tokens - allowed.shape[1]
    return torch.nn.functional.pad(allowed, (0, missing)) if missing else allowed


def _native(scores: Tensor, bitmasks: Sequence[Bitmask | None]) -> NativeKernels | None:
    """The compiled kernels, if they take these."""
    assert len(scores) == len(bitmasks)
    sizes = {(len(mask), mask.flags.c_contiguous) for mask in bitmasks if mask is not None}
    alike = len(sizes) <= 1 and all(contiguous for _, contiguous in sizes)
    fits = scores.device.type == "cpu" and scores.dtype is torch.float32 and scores.stride(1) == 1
    return prepared_kernels() if alike and fits else None


def _addresses(bitmasks: Sequence[Bitmask | None]) -> tuple[NDArray[np.int64], int]:
    """Where the masks lie, 0 for None; and how many words each has. They must outlive what is done with these."""
    addresses = np.array([0 if mask is None else mask.ctypes.data for mask in bitmasks], dtype=np.int64)
    return addresses, next((len(mask) for mask in bitmasks if mask is not None), 0)
