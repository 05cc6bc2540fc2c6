"""Memory in huge pages (2 MiB instead of 4 KiB), for weights that are read from end to end in every step.

A processor fetches ahead within a page only, and every page costs a walk through the page tables, twice as far in a
virtual machine: in small pages two cores of such a one read 28 GB/s, in huge ones 44. Linux gives huge pages to those
who ask, if it has any; whoever gets none has the same memory in small ones.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

_HUGE_PAGE = 2 << 20
_CHUNK = 16 * _HUGE_PAGE  # asked for at once: one small weight after the other fills it
_ALIGNMENT = 64


class HugePages:
    """Keeps tensors side by side. The memory goes when the last of them does."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)  # what is left of the last chunk

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor on the CPU, contiguous."""
        size = tensor.nbytes
        if size > len(self._rest):
            self._rest = _pages(max(size, _CHUNK))
        place, self._rest = self._rest[:size], self._rest[-(-size // _ALIGNMENT) * _ALIGNMENT :]
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _pages(size: int) -> Tensor:
    """At least `size` bytes from the start of a huge page on, untouched: uint8."""
    whole = -(-size // _HUGE_PAGE) * _HUGE_PAGE
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # not Linux
        return torch.empty(whole, dtype=torch.uint8)
    memory = mmap.mmap(-1, whole + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    everything = torch.frombuffer(memory, dtype=torch.uint8)
    first = -everything.data_ptr() % _HUGE_PAGE
    return everything[first : first + whole]
