# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, operator"
"""`log_sums` in Triton: a program for each row and tile, then one for each row, so that sums have one order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels.score_tiles_triton import BLOCK, masked, tile_columns


@triton.jit(do_not_specialize_on_alignment=["sources", "masks", "numbers"])
def _of_tiles(
    logits, sources, masks, numbers, peaks, sums, row_stride, width, num_words, num_blocks,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    block = tl.program_id(1)
    columns = tile_columns(block, BLOCK)
    at = tl.load(sources + row).to(tl.int64) * row_stride
    value = tl.load(logits + at + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
    if MASKED:
        value = masked(value, masks, tl.load(numbers + row), block, num_words, BLOCK)
    peak = tl.max(value)
    shift = tl.where(peak > float("-inf"), peak, 0.0)
    tl.store(peaks + row * num_blocks + block, peak)
    tl.store(sums + row * num_blocks + block, tl.sum(tl.exp(value - shift)))


@triton.jit
def _of_rows(peaks, sums, result, num_blocks, BLOCKS: tl.constexpr):
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    at = row * num_blocks + block
    tops = tl.load(peaks + at, mask=block < num_blocks, other=float("-inf"))
    top = tl.max(tops)
    shift = tl.where(top > float("-inf"), top, 0.0)
    total = tl.sum(tl.load(sums + at, mask=block < num_blocks, other=0.0) * tl.exp(tops - shift))
    tl.store(result + 2 * row, top)
    tl.store(result + 2 * row + 1, tl.log(total))


def log_sums_triton(
    logits: Tensor, sources: Tensor, masks: Tensor | None, numbers: Tensor | None, num_tokens: int
) -> Tensor:
    """See `log_sums`."""
    width = logits.shape[1] if masks is None else num_tokens
    num_blocks = triton.cdiv(width, BLOCK)
    peaks, sums = (torch.empty(len(sources), num_blocks, device=logits.device) for _ in range(2))
    result = torch.empty(len(sources), 2, device=logits.device)
    num_words = 0 if masks is None else masks.shape[1]
    sources, numbers = sources.contiguous(), None if numbers is None else numbers.contiguous()
    _of_tiles[(len(sources), num_blocks)](
        logits, sources, masks, numbers, peaks, sums, logits.stride(0), width, num_words, num_blocks,
        MASKED=masks is not None, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    _of_rows[(len(sources),)](peaks, sums, result, num_blocks, BLOCKS=triton.next_power_of_2(num_blocks), num_warps=1)
    return result
