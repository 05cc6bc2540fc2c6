"""Products and other row-wise operations in blocks of a fixed number of rows.

A library may sum a row in another order, or take another path at the end of a vector, depending on how many rows there
are. In blocks of one size a row's result depends on its own numbers only, whatever it is computed together with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

BLOCK_ROWS = 16  # a decode step of one request pays for so many rows; reading the weights is what takes its time

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])


def in_blocks(function: Callable[..., Result], *inputs: Tensor) -> Result:
    """`function` of tensors [T, ...], which gives one or two such, computed `BLOCK_ROWS` rows at a time. The last block
    is filled up with its last row, so a function that writes for each row writes the same twice."""
    count = len(inputs[0])
    if count == 0:
        return function(*inputs)
    missing = -count % BLOCK_ROWS
    padded = [_padded(x, missing) for x in inputs] if missing else inputs
    parts = [function(*(x[i : i + BLOCK_ROWS] for x in padded)) for i in range(0, count, BLOCK_ROWS)]
    if isinstance(parts[0], Tensor):
        return _joined(parts, count)
    first, second = zip(*parts, strict=True)
    return _joined(first, count), _joined(second, count)


def at_once(function: Callable[..., Result], *inputs: Tensor) -> Result:
    """The same without blocks."""
    return function(*inputs)


def _padded(x: Tensor, missing: int) -> Tensor:
    return torch.cat((x, x[-1:].expand(missing, *x.shape[1:])))


def _joined(parts: Sequence[Tensor], count: int) -> Tensor:
    whole = torch.cat(tuple(parts)) if len(parts) > 1 else parts[0]
    return whole[:count]
