"""What the scheduler does where memory is short, step by step, without an engine around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from lmnb.runtime.batch import KVLayout
from lmnb.runtime.config import EngineConfig, resolve
from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.radix_cache import RadixCache
from lmnb.runtime.request import Request, SamplingParams
from lmnb.runtime.sampler_row import SamplerRow
from lmnb.runtime.scheduler import Scheduler
from lmnb.runtime.sequence import Sequence

_LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu"))


def sequence_of(number: int, ids: range) -> Sequence:
    params = SamplingParams(max_new_tokens=200)
    handle: Any = SimpleNamespace(request_id=number)
    output: Any = SimpleNamespace(finished=False)
    return Sequence(Request(input_ids=tuple(ids), sampling=params), handle, output, SamplerRow(params, seed=0))


def test_one_that_is_left_alone_gets_what_others_growth_has_taken() -> None:
    """The node that it holds is another's as well, which has written on there, and filled the pool."""
    limits = resolve(EngineConfig(pool_tokens=100), _LAYOUT, 4096)
    pool, cache = KVPool(_LAYOUT, 100), RadixCache()
    scheduler = Scheduler(limits, pool, cache)

    def step() -> int:
        rows = scheduler.schedule()
        scheduler.complete(rows)
        return sum(row.end - row.start for row in rows)

    first, second = sequence_of(1, range(20)), sequence_of(2, range(20))
    scheduler.add(first)
    assert step() == 20
    scheduler.add(second)
    assert step() == 1  # the last token of a prompt is always computed
    forced = [*range(1000, 1070)]
    first.replace(0, forced, bytearray(len(forced)))
    assert step() == len(forced)
    assert cache.num_tokens == 90
    scheduler.finish(first)
    forced = [*range(2000, 2030)]
    second.replace(0, forced, bytearray(len(forced)))
    computed = [step() for _ in range(4)]
    assert second.num_computed == 50, computed
    scheduler.finish(second)
    scheduler.check_integrity()
