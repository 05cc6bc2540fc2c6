"""One forward pass, flattened: every request's new tokens, end to end, and where their KV lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lmnb.kernels.device_plan import DevicePlan


@dataclass(slots=True)
class ForwardBatch:
    """The input of `Model.forward`: B requests with T new tokens in total.

    Row i's new tokens are `input_ids[query_starts[i]:query_starts[i + 1]]`; they sit at the end of the
    `kv_lens[i]` tokens that they see (new ones included), whose pool slots are `slot_table[i, :kv_lens[i]]`.
    `positions` is where they stand for the rotary embedding, which need not be where they sit.
    The first `num_decode` rows have exactly one new token each.
    `shared_len`: that many leading slots are the same for all of the first `num_decode` rows (0 if unknown);
    their KV need be read once only.
    `strict`: a token's numbers must not depend on what else is in the batch, nor on how its prompt was cut in pieces
    (see `Model.can_be_strict`).
    `plan`: on a GPU, where the tokens and their keys lie; then tensors are int32, and the numbers about the rows
    (`query_starts`, `kv_lens`, `num_decode`, `shared_len`) are in it alone.
    """

    input_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    out_slots: Tensor  # int64 [T]: where each new token's K and V are written
    slot_table: Tensor  # int64 [B, >= max(kv_lens)]
    query_starts: list[int]  # [B + 1], on the host
    kv_lens: list[int]  # [B], on the host
    logits_rows: Tensor | None  # int64 [L]: indices into T whose logits are wanted; None: all
    num_decode: int = 0
    shared_len: int = 0
    strict: bool = False
    plan: DevicePlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Shape of a KV pool: per layer, K and V of [num_slots, num_kv_heads, head_dim].

    A model's own is in the dtype that it computes in; a pool may store them in 8 bits instead
    (see `Model.takes_fp8_keys`)."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class Model(Protocol):
    """A decoder that reads and writes a paged KV pool."""

    name: str
    vocab_size: int  # rows of the logits; may exceed the tokenizer's
    context_tokens: int  # longest sequence it was made for
    num_heads: int  # query heads
    kv_layout: KVLayout
    weight_bytes: int
    can_be_strict: bool  # honours `ForwardBatch.strict`
    takes_fp8_keys: bool  # runs on a pool in float8, too: no key or value is known to lie beyond its range
    takes_device_plan: bool  # on a GPU: runs from a `DevicePlan`, and under CUDA graphs
    weight_note: str  # how the weights are held, where it is not in the layout's dtype; for people

    def forward(self, batch: ForwardBatch, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Write the new tokens' K and V into `keys`/`values` (one tensor a layer, [num_slots, num_kv_heads,
        head_dim], all of one dtype), attend, and return logits [L, vocab_size] of `batch.logits_rows`: float32, or
        on a GPU in the model's dtype."""
        ...
