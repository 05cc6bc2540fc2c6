"""What choosing tokens on a GPU would compile and load when it first comes up, with every request waiting, done before.

Compiling takes seconds the first time on a machine, and loading hundredths of one. It is brought about by choosing,
for nobody, in all the ways there are: by the very calls that choose for requests, on tensors and a stream of its own.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from lmnb.kernels.slot_table_triton import copy_rows
from lmnb.runtime.device_batch import Field, Staging, views
from lmnb.runtime.device_sampler import DeviceSampler
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.sampler_row import SamplerRow

# Each with what the one before does not take: a greedy choice, a draw, one from few tokens, penalties and what else
# there is, by several kernels.
_WAYS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1),
    SamplingParams(temperature=1, top_p=0.9),
    SamplingParams(temperature=1, frequency_penalty=0.5, return_logprob=True, top_logprobs_num=2),
)


@torch.inference_mode()
def rehearse(device: torch.device, dtype: torch.dtype, vocab_size: int, num_tokens: int, num_columns: int) -> None:
    """For logits [L, vocab_size] of `dtype`, of which `num_tokens` are tokens, and a slot table of so many columns.
    Any thread may call it, while an engine runs."""
    on_stream = torch.cuda.stream(_stream(device)) if device.type == "cuda" else nullcontext()
    with on_stream:
        logits = torch.zeros(1, vocab_size, dtype=dtype, device=device)
        staging = Staging(device)
        chooser = DeviceSampler(num_tokens, torch.zeros(1, dtype=torch.int32, device=device), staging)
        _rehearse_moves(staging, num_columns, device)
        for bitmask in (None, np.full(-(-num_tokens // 32), -1, dtype=np.int32)):
            for params in _WAYS:
                row = SamplerRow(params, seed=0)
                row.count(0)
                row.bitmask = bitmask
                chooser.launch(logits, [0], [0], [row]).read()
        if device.type == "cuda":
            _stream(device).synchronize()


def _rehearse_moves(staging: Staging, num_columns: int, device: torch.device) -> None:
    """What a prefix that is found in the cache takes."""
    table = torch.zeros(1, num_columns, dtype=torch.int32, device=device)
    arrays = [np.zeros(1, dtype=np.int32), np.array([[0, 0, 1, 0]], dtype=np.int32)]
    moves = views(staging.upload(arrays), [Field("slots", (1,)), Field("spans", (1, 4))])
    copy_rows(moves["slots"], moves["spans"], table)


@functools.cache
def _stream(device: torch.device) -> Any:
    """One for all engines: libraries keep memory for every stream they see."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
