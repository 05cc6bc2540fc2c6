"""transformers' own models with keys and values as a pool in 8 bits has them: what such an engine is compared with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from lmnb.kernels.fp8 import to_fp8


@contextmanager
def keys_in_fp8(model: Any) -> Iterator[None]:
    """Inside, each layer of `model` rounds its keys (after their rotation) and values to float8 before it attends."""
    module = sys.modules[type(model).__module__]
    attend = module.eager_attention_forward

    def rounded(layer: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        return attend(layer, query, to_fp8(key).to(key.dtype), to_fp8(value).to(value.dtype), *args, **options)

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with mock.patch.object(module, "eager_attention_forward", rounded):
            yield
    finally:
        model.set_attn_implementation(before)


def regret(model: Any, prompt: Sequence[int], generated: Sequence[int]) -> Tensor:
    """By how much each generated token's logit falls short of the largest one, by transformers: [len(generated)]."""
    ids = torch.tensor([[*prompt, *generated[:-1]]], device=model.device)
    with torch.no_grad():
        rows = model(ids).logits[0, len(prompt) - 1 :].float().cpu()
    return rows.max(-1).values - rows.gather(1, torch.tensor(generated)[:, None])[:, 0]
