"""The Llama-family decoder (Llama, Mistral, Qwen2, Qwen3, SmolLM2): `Model` over a paged KV pool.

Projections that read the same input are one matrix. It knows nothing of requests, sampling or files' places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from lmnb.kernels.attention_plan import AttentionPlan, NativePlan, plan_attention, plan_native
from lmnb.kernels.decoder_layers import DecoderLayer, NativeLayers, can_run_natively
from lmnb.kernels.device_plan import DevicePlan
from lmnb.kernels.eight_bit import EightBitWeights
from lmnb.kernels.fp8 import FP8_MAX
from lmnb.kernels.paged_attention import attends_natively, paged_attention
from lmnb.kernels.quantized_linear import NativeProduct, QuantizedWeight
from lmnb.kernels.rms_norm import add_rms_norm, rms_norm
from lmnb.kernels.rotary_store import RotaryAngles, rotary_store
from lmnb.kernels.row_blocks import at_once, in_blocks
from lmnb.kernels.silu_mul import silu_mul
from lmnb.kernels.strict_attention import plan_strict_attention
from lmnb.runtime.batch import ForwardBatch
from lmnb.runtime.decoder_config import DecoderConfig
from lmnb.runtime.weight_reader import WeightReader
from lmnb.runtime.weights import Weights


class LlamaModel:
    """A decoder with its weights in memory. Implements `Model`; `forward` is for one thread at a time."""

    takes_device_plan = True
    can_be_strict = True

    def __init__(
        self,
        name: str,
        config: DecoderConfig,
        checkpoint: Weights,
        dtype: torch.dtype,
        device: torch.device,
        integers: Mapping[str, QuantizedWeight] | None = None,
        eight_bit: EightBitWeights | None = None,
    ) -> None:
        """`integers`: the weights that are computed with as stored, where this machine can; a CPU, in bfloat16.
        `eight_bit`: what makes 8-bit weights of all that products are taken with."""
        self.name = name
        self.config = config
        self.vocab_size = config.vocab_size
        self.context_tokens = config.context_tokens
        self.num_heads = config.num_heads
        self.kv_layout = config.kv_layout(dtype, device)
        reader = WeightReader(name, checkpoint, config, dtype, device, integers or {}, eight_bit)
        with torch.inference_mode():
            self._embedding = reader.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
            self._layers = [reader.layer(index) for index in range(config.num_layers)]
            self._norm = reader.tensor("model.norm.weight", config.hidden_size)
            # A tied head is laid out for products, the embedding for look-ups: two copies.
            head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
            self._head = reader.linear([head], [config.vocab_size], config.hidden_size, bias=False, is_head=True)
            self._angles = RotaryAngles(config.inv_freq().to(device), dtype, config.context_tokens)
            self._native: NativeLayers | None = None
            if can_run_natively(self._layers, config.head_dim):
                heads = {"num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads}
                self._native = NativeLayers(self._layers, self._norm, **heads, eps=config.rms_norm_eps)
        if eight_bit is not None and device.type == "cuda":
            torch.cuda.empty_cache()  # what quantising took is the KV pool's
        checkpoint.expect_all_read(harmless=("rotary_emb.inv_freq", "lm_head.weight"))
        self.weight_bytes = reader.num_bytes
        self.weight_bits = reader.weight_bits
        self.weight_note = reader.note()
        self.takes_fp8_keys = reader.key_reach <= FP8_MAX
        self._scale = config.head_dim**-0.5

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """See `Model.forward`."""
        run = in_blocks if _wants_blocks(batch) else at_once
        plans = self._plan(batch, keys[0].dtype)
        cos, sin = run(self._angles, batch.positions)
        embedded = functional.embedding(batch.input_ids, self._embedding)
        if self._native is not None and isinstance(plans[self._layers[0].window], NativePlan):
            natively = cast(Mapping[int | None, NativePlan], plans)
            x = self._native(embedded, cos, sin, batch.out_slots, natively, keys, values, batch.logits_rows)
        else:
            x = self._one_by_one(embedded, cos, sin, plans, batch, keys, values)
        multiply = partial(self._head, wide=True, strict=batch.strict)
        stands_alone = isinstance(self._head.weight, NativeProduct)  # each row's product, by itself
        logits = multiply(x) if stands_alone else run(multiply, x)
        return logits if batch.plan is not None else logits.float()

    def _one_by_one(
        self,
        residual: Tensor,
        cos: Tensor,
        sin: Tensor,
        plans: Mapping[int | None, AttentionPlan | NativePlan | DevicePlan],
        batch: ForwardBatch,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> Tensor:
        """The layers, operation by operation: the wanted tokens' normed results [L, hidden]."""
        run, strict = in_blocks if _wants_blocks(batch) else at_once, batch.strict
        x = run(self._first_norm, residual)
        for index, layer in enumerate(self._layers):
            heads, new_values = run(partial(self._project, layer, strict=strict), x)
            store = partial(self._rotate, keys[index], values[index])
            queries = run(store, heads, new_values, cos, sin, batch.out_slots)
            x = paged_attention(
                queries, keys[index], values[index], plans[layer.window], self._scale, layer.window, dtype=x.dtype
            )
            is_last = index == len(self._layers) - 1
            if (
                is_last and batch.logits_rows is not None
            ):  # nothing after the last attention mixes tokens: go on with the wanted rows only
                x, residual = x[batch.logits_rows], residual[batch.logits_rows]
            next_norm = self._norm if is_last else self._layers[index + 1].input_norm
            x, residual = run(partial(self._finish, layer, next_norm, strict=strict), x, residual)
        return x

    def _first_norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self._layers[0].input_norm, self.config.rms_norm_eps)

    @staticmethod
    def _rotate(
        keys: Tensor, values: Tensor, heads: Tensor, new_values: Tensor, cos: Tensor, sin: Tensor, out_slots: Tensor
    ) -> Tensor:
        return rotary_store(heads, new_values, cos, sin, keys, values, out_slots)

    def _finish(
        self, layer: DecoderLayer, next_norm: Tensor, x: Tensor, residual: Tensor, *, strict: bool
    ) -> tuple[Tensor, Tensor]:
        """All of a layer behind its attention, and the norm that comes next."""
        eps = self.config.rms_norm_eps
        x, residual = add_rms_norm(layer.out(x, strict=strict), residual, layer.post_norm, eps)
        x = layer.down(silu_mul(layer.gate_up(x, strict=strict)), strict=strict)
        return add_rms_norm(x, residual, next_norm, eps)

    def _plan(
        self, batch: ForwardBatch, stored: torch.dtype
    ) -> Mapping[int | None, AttentionPlan | NativePlan | DevicePlan]:
        """One attention plan for each kind of layer."""
        config = self.config
        if batch.plan is not None:
            return dict.fromkeys(config.windows, batch.plan)
        make = self._planner(batch, stored)
        shape = (batch.slot_table, batch.query_starts, batch.kv_lens)
        heads_per_kv = config.num_heads // config.num_kv_heads
        return {window: make(*shape, heads_per_kv=heads_per_kv, window=window) for window in set(config.windows)}

    def _planner(self, batch: ForwardBatch, stored: torch.dtype) -> Callable[..., AttentionPlan | NativePlan]:
        """What plans this step's attention: natively (which is strict by itself), strictly, or in torch."""
        dtype = self.kv_layout.dtype
        if stored is dtype and attends_natively(self._embedding, self.config.head_dim):
            return partial(plan_native, num_decode=batch.num_decode, shared_len=batch.shared_len)
        if batch.strict:
            return partial(plan_strict_attention, dtype=dtype)
        return partial(plan_attention, num_decode=batch.num_decode, shared_len=batch.shared_len, dtype=dtype)

    def _project(self, layer: DecoderLayer, x: Tensor, *, strict: bool) -> tuple[Tensor, Tensor]:
        """Query and key heads [T, Hq + Hkv, D], and values [T, Hkv, D], before rotation."""
        config = self.config
        qkv = layer.qkv(x, strict=strict).view(len(x), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        heads, new_values = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if layer.head_norm is not None:
            heads = rms_norm(heads, layer.head_norm, config.rms_norm_eps)
        return heads, new_values


def _wants_blocks(batch: ForwardBatch) -> bool:
    """Whether rows are computed in blocks of one size. On a GPU each row of every kernel stands for itself, but for a
    library's products, which strict mode does without."""
    return batch.strict and batch.plan is None
