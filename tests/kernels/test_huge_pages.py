"""Weights side by side in huge pages, where there are any."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch

from lmnb.kernels.huge_pages import HugePages


def test_what_is_kept_is_a_copy_of_its_own() -> None:
    memory = HugePages()
    tensors = [torch.arange(count, dtype=dtype) for count in (1, 7, 64, 100_000) for dtype in (torch.uint8, torch.half)]
    tensors.append(torch.randn(6, 8)[:, ::2])
    kept = [memory.keep(tensor) for tensor in tensors]
    for tensor in tensors:
        tensor.zero_()
    kept_again = memory.keep(torch.ones(3))
    assert kept[-1].is_contiguous()
    assert torch.equal(kept_again, torch.ones(3))
    for tensor in kept[:-1]:
        assert torch.equal(tensor, torch.arange(len(tensor), dtype=tensor.dtype))
    addresses = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in kept)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(addresses))
    assert all(address % 64 == 0 for address, _ in addresses)


def test_small_tensors_share_a_chunk_and_large_ones_have_their_own() -> None:
    memory = HugePages()
    first, second = memory.keep(torch.zeros(100)), memory.keep(torch.zeros(100))
    large = memory.keep(torch.ones(40 << 20, dtype=torch.uint8))
    assert second.data_ptr() - first.data_ptr() == 448
    assert int(large.sum()) == 40 << 20


def test_pages_are_huge() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text("utf-8"):
        pytest.skip("this system gives no huge pages")
    kept = HugePages().keep(torch.ones(8 << 20, dtype=torch.uint8))
    pages = Path("/proc/self/smaps").read_text("utf-8")
    for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", pages):
        first, last = (int(part, 16) for part in entry.split(" ", 1)[0].split("-"))
        if first <= kept.data_ptr() < last:
            found = re.search(r"AnonHugePages: +(\d+)", entry)
            assert found is not None
            assert int(found[1]) > 0
            return
    raise AssertionError("the memory is nowhere")
