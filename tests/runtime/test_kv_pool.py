from __future__ import annotations

import numpy as np
import pytest
import torch

from lmnb.runtime.batch import KVLayout
from lmnb.runtime.kv_pool import KVPool


@pytest.fixture
def pool() -> KVPool:
    layout = KVLayout(num_layers=2, num_kv_heads=3, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu"))
    return KVPool(layout, 16)


def test_slots_come_out_once_and_go_back(pool: KVPool) -> None:
    first, second = pool.alloc(10), pool.alloc(6)
    assert sorted([*first, *second]) == list(range(16))
    assert pool.num_free == 0
    pool.free(first)
    pool.check_integrity(second)
    assert pool.num_bytes == 16 * 2 * 2 * 3 * 4 * 2


def test_integrity_names_lost_and_shared_slots(pool: KVPool) -> None:
    taken = pool.alloc(4)
    with pytest.raises(AssertionError, match="1 slots are lost"):
        pool.check_integrity(taken[1:])
    with pytest.raises(AssertionError, match="two owners"):
        pool.check_integrity(np.concatenate([taken, taken[:1]]))


def test_freeing_twice_is_noticed(pool: KVPool) -> None:
    taken = pool.alloc(1)
    pool.free(taken)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(taken)


def test_an_empty_pool_is_as_good_as_new(pool: KVPool) -> None:
    first = pool.alloc(pool.num_slots)
    pool.free(np.random.default_rng(0).permutation(first))
    assert pool.alloc(pool.num_slots).tolist() == first.tolist()
