"""Our paged attention in the place of a transformers model's own: what `AttentionInterface` calls in each layer.

The model is called with one row that holds all new tokens of all requests, inside `running(step)`. Each layer's
attention then says how it attends (scale, window, soft-cap), and the step does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from torch import Tensor

from lmnb.kernels.attention_plan import AttentionPlan
from lmnb.kernels.fp8 import store_rows
from lmnb.kernels.paged_attention import paged_attention

NAME = "lmnb_paged"  # as transformers knows it


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """How one layer attends."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None
    softcap: float | None
    others: tuple[str, ...]  # what else it asks for, which is not computed here


class Step(Protocol):
    """One forward pass."""

    def attend(self, index: int, how: LayerAttention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The new tokens' queries [T, Hq, D], keys [T, Hkv, D] and values in layer `index` -> [T, Hq * D]."""
        ...


class RecordingStep:
    """Notes how each layer attends, and computes nothing."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerAttention] = {}
        self.num_calls = 0

    def attend(self, index: int, how: LayerAttention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self.num_calls += 1
        self.layers[index] = how
        return queries.new_zeros(len(queries), how.num_heads * how.value_dim)


@dataclass(slots=True)
class PagedStep:
    """Writes the new keys and values into the pool, and attends over it."""

    keys: list[Tensor]
    values: list[Tensor]
    out_slots: Tensor
    plan: Callable[[int | None], AttentionPlan]  # for a window

    def attend(self, index: int, how: LayerAttention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        pool_keys, pool_values = self.keys[index], self.values[index]
        store_rows(pool_keys, self.out_slots, keys)
        store_rows(pool_values, self.out_slots, values)
        plan = self.plan(how.window)
        return paged_attention(queries, pool_keys, pool_values, plan, how.scale, how.window, how.softcap)


# Not every model hands keywords down to its layers, so the step does not go by one.
_running: ContextVar[Step] = ContextVar("running")


@contextmanager
def running(step: Step) -> Iterator[None]:
    """In this thread, attention is `step`'s."""
    before = _running.set(step)
    try:
        yield
    finally:
        _running.reset(before)


@cache
def install() -> None:
    """Tell transformers of this attention, once."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """`query` [1, Hq, T, D], `key` and `value` [1, Hkv, T, D] -> [1, T, Hq, D], as transformers wants it."""
    how = LayerAttention(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[3],
        value_dim=value.shape[3],
        scale=query.shape[3] ** -0.5 if scaling is None else float(scaling),
        window=sliding_window,
        softcap=softcap,
        others=_asked_for(module, attention_mask, others),
    )
    # Tensors of another type than the weights' (a rotation in float32, say) go on in the type of the values.
    out = _running.get().attend(
        module.layer_idx, how, *(x[0].transpose(0, 1).to(value.dtype).contiguous() for x in (query, key, value))
    )
    return out.view(1, len(out), how.num_heads, how.value_dim), None


def _asked_for(module: Any, mask: Tensor | None, others: dict[str, Any]) -> tuple[str, ...]:
    """What would change the result and is not computed by `paged_attention`."""
    causal = others.get("is_causal")
    found = {
        "attention sinks": others.get("s_aux") is not None,
        "a bias of the scores": others.get("position_bias") is not None or others.get("attention_bias") is not None,
        "a mask of its own": mask is not None,
        "dropout": bool(others.get("dropout")),
        "looking ahead": not (getattr(module, "is_causal", True) if causal is None else causal),
    }
    return tuple(name for name, asked in found.items() if asked)
