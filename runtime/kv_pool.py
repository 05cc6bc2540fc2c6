"""The KV memory: one slot per token, K and V per layer, and the list of free slots.

It knows nothing of who uses a slot; the radix cache and the running sequences own them.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmnb.kernels.fp8 import as_bytes
from lmnb.runtime.batch import KVLayout

Slots = NDArray[np.int64]


class KVPool:
    """`num_slots` slots. `keys[l]`, `values[l]`: [num_slots + 1, num_kv_heads, head_dim] of layer l.

    The last slot, `spare_slot`, is nobody's: padding is written there.
    """

    def __init__(self, layout: KVLayout, num_slots: int) -> None:
        shape = (num_slots + 1, layout.num_kv_heads, layout.head_dim)

        self.layout = layout
        self.num_slots = num_slots
        self.spare_slot = num_slots
        self.keys = [_zeros(shape, layout) for _ in range(layout.num_layers)]
        self.values = [_zeros(shape, layout) for _ in range(layout.num_layers)]
        self._free: Slots = np.arange(num_slots - 1, -1, -1, dtype=np.int64)  # a stack: the top is at the end
        self._num_free = num_slots

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_bytes(self) -> int:
        return self.num_slots * self.layout.bytes_per_token

    def alloc(self, count: int) -> Slots:
        """`count` free slots, now the caller's. The caller has made sure that there are so many."""
        assert 0 <= count <= self._num_free, "the scheduler must make room before it allocates"
        self._num_free -= count
        return self._free[self._num_free : self._num_free + count].copy()

    def free(self, slots: Slots) -> None:
        """Give slots back."""
        end = self._num_free + len(slots)
        assert end <= self.num_slots, "slots were freed twice"
        self._free[self._num_free : end] = slots
        self._num_free = end
        if end == self.num_slots:  # neighbours side by side again, as in a new pool: memory is read faster so
            self._free[::-1].sort(kind="stable")  # quick where most are in order

    def copy(self, source: Slots, target: Slots) -> None:
        """Write the keys and values of some slots to others as well."""
        device = self.layout.device
        there, here = torch.from_numpy(source).to(device), torch.from_numpy(target).to(device)
        for tensor in map(as_bytes, (*self.keys, *self.values)):
            tensor[here] = tensor[there]

    def check_integrity(self, used: Slots) -> None:
        """Every slot is either free or in `used`, exactly once."""
        everything = np.concatenate([self._free[: self._num_free], used])
        counts = np.bincount(everything, minlength=self.num_slots)
        assert len(counts) == self.num_slots, "a slot number is out of range"
        lost = np.flatnonzero(counts == 0)
        shared = np.flatnonzero(counts > 1)
        assert not len(lost), f"{len(lost)} slots are lost, among them {lost[:5].tolist()}"
        assert not len(shared), f"{len(shared)} slots have two owners, among them {shared[:5].tolist()}"


def _zeros(shape: tuple[int, int, int], layout: KVLayout) -> Tensor:
    """Zeroed memory. On the CPU through numpy, which leaves pages untouched until they are used: a pool of
    gigabytes then costs neither time nor memory before it fills (torch writes every zero at once)."""
    if layout.device.type != "cpu":
        return torch.zeros(shape, dtype=layout.dtype, device=layout.device)
    num_bytes = int(np.prod(shape)) * layout.dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(layout.dtype).view(shape)
