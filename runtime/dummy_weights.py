"""Random weights in place of a checkpoint: for measurements, and for a config without weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class DummyCheckpoint:
    """Gives every tensor that is asked for, made on `device`: norms are one, the rest is small and random."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        self._dtype, self._device = dtype, device
        self._generator = torch.Generator(device).manual_seed(seed)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Checkpoint.get`."""
        if "norm" in name:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        out = torch.empty(shape, dtype=self._dtype, device=self._device)
        return out.normal_(0.0, 0.02, generator=self._generator)

    def skip(self, name: str) -> None:
        """Nothing is ever left."""

    def expect_all_read(self, harmless: Iterable[str] = ()) -> None:
        """Nothing is ever left."""
