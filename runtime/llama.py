"""The Llama-family decoder (Llama, Mistral, Qwen2, Qwen3, SmolLM2): `Model` over a paged KV pool.

Projections that read the same input are one matrix. It knows nothing of requests, sampling or files' places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from lmnb.kernels.attention_plan import AttentionPlan, NativePlan, plan_attention, plan_native
from lmnb.kernels.device_plan import DevicePlan
from lmnb.kernels.layer_tail import LayerTail, layer_tail
from lmnb.kernels.linear import Projection, pack_weight
from lmnb.kernels.native import why_not
from lmnb.kernels.paged_attention import attends_natively, paged_attention
from lmnb.kernels.quantized_linear import QuantizedProduct, QuantizedWeight, concatenated, pack_quantized
from lmnb.kernels.rms_norm import rms_norm
from lmnb.kernels.rotary_store import rotary_angles, rotary_store
from lmnb.kernels.row_blocks import at_once, in_blocks
from lmnb.kernels.strict_attention import plan_strict_attention
from lmnb.runtime.batch import ForwardBatch, KVLayout
from lmnb.runtime.decoder_config import DecoderConfig
from lmnb.runtime.weights import Weights


@dataclass(slots=True)
class DecoderLayer:
    """Weights of one layer."""

    input_norm: Tensor  # [hidden]
    qkv: Projection
    head_norm: Tensor | None  # [Hq + Hkv, head_dim]: norm of each query and key head
    tail: LayerTail
    window: int | None


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
    ) -> None:
        """`integers`: the weights that are computed with as stored, where this machine can; a CPU, in bfloat16."""
        self.name = name
        self.config = config
        self.vocab_size = config.vocab_size
        self.context_tokens = config.context_tokens
        self.num_heads = config.num_heads
        self.kv_layout = KVLayout(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            device=device,
        )
        reader = _WeightReader(checkpoint, config, dtype, device, integers or {})
        with torch.inference_mode():
            self._embedding = reader.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
            self._layers = [reader.layer(index) for index in range(config.num_layers)]
            self._norm = reader.tensor("model.norm.weight", config.hidden_size)
            # A tied head is laid out for products, the embedding for look-ups: two copies.
            head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
            self._head = reader.linear([head], [config.vocab_size], config.hidden_size, bias=False)
            self._inv_freq = config.inv_freq().to(device)
        checkpoint.expect_all_read(harmless=("rotary_emb.inv_freq", "lm_head.weight"))
        self.weight_bytes = reader.num_bytes
        self.weight_bits = reader.weight_bits
        self.weight_note = reader.note()
        self._scale = config.head_dim**-0.5

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """See `Model.forward`."""
        run = in_blocks if batch.strict else at_once
        plans = self._plan(batch)
        cos, sin = run(self._angles, batch.positions)
        residual = functional.embedding(batch.input_ids, self._embedding)
        x = run(self._first_norm, residual)
        for index, layer in enumerate(self._layers):
            heads, new_values = run(partial(self._project, layer), x)
            store = partial(self._rotate, keys[index], values[index])
            queries = run(store, heads, new_values, cos, sin, batch.out_slots)
            x = paged_attention(queries, keys[index], values[index], plans[layer.window], self._scale, layer.window)
            is_last = index == len(self._layers) - 1
            if (
                is_last and batch.logits_rows is not None
            ):  # nothing after the last attention mixes tokens: go on with the wanted rows only
                x, residual = x[batch.logits_rows], residual[batch.logits_rows]
            next_norm = self._norm if is_last else self._layers[index + 1].input_norm
            x, residual = run(partial(self._finish, layer, next_norm), x, residual)
        logits = run(self._logits, x)
        return logits if batch.plan is not None else logits.float()

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rotary_angles(positions, self._inv_freq, self.kv_layout.dtype)

    def _first_norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self._layers[0].input_norm, self.config.rms_norm_eps)

    @staticmethod
    def _rotate(
        keys: Tensor, values: Tensor, heads: Tensor, new_values: Tensor, cos: Tensor, sin: Tensor, out_slots: Tensor
    ) -> Tensor:
        return rotary_store(heads, new_values, cos, sin, keys, values, out_slots)

    def _finish(self, layer: DecoderLayer, next_norm: Tensor, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """All of a layer behind its attention, and the norm that comes next."""
        return layer_tail(x, residual, layer.tail, next_norm, self.config.rms_norm_eps)

    def _logits(self, x: Tensor) -> Tensor:
        return self._head(x, wide=True)

    def _plan(self, batch: ForwardBatch) -> Mapping[int | None, AttentionPlan | NativePlan | DevicePlan]:
        """One attention plan for each kind of layer."""
        config = self.config
        if batch.plan is not None:
            return dict.fromkeys(config.windows, batch.plan)
        make = self._planner(batch)
        shape = (batch.slot_table, batch.query_starts, batch.kv_lens)
        heads_per_kv = config.num_heads // config.num_kv_heads
        return {window: make(*shape, heads_per_kv=heads_per_kv, window=window) for window in set(config.windows)}

    def _planner(self, batch: ForwardBatch) -> Callable[..., AttentionPlan | NativePlan]:
        """What plans this step's attention: natively (which is strict by itself), strictly, or in torch."""
        if attends_natively(self._embedding, self.config.head_dim):
            return partial(plan_native, num_decode=batch.num_decode, shared_len=batch.shared_len)
        dtype = self.kv_layout.dtype
        if batch.strict:
            return partial(plan_strict_attention, dtype=dtype)
        return partial(plan_attention, num_decode=batch.num_decode, shared_len=batch.shared_len, dtype=dtype)

    def _project(self, layer: DecoderLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key heads [T, Hq + Hkv, D], and values [T, Hkv, D], before rotation."""
        config = self.config
        qkv = layer.qkv(x).view(len(x), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        heads, new_values = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if layer.head_norm is not None:
            heads = rms_norm(heads, layer.head_norm, config.rms_norm_eps)
        return heads, new_values


class _WeightReader:
    """Reads, fuses and lays out the tensors of a checkpoint, and counts their bytes."""

    def __init__(
        self,
        checkpoint: Weights,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        integers: Mapping[str, QuantizedWeight],
    ) -> None:
        self.num_bytes = 0
        self.weight_bits = dtype.itemsize * 8  # the fewest bits of any weight
        self._checkpoint, self._config, self._dtype, self._device = checkpoint, config, dtype, device
        self._integers = integers

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor as it is, in the model's dtype and on its device."""
        return self._count(self._checkpoint.get(name, shape).to(self._device, self._dtype))

    def linear(self, modules: list[str], out_sizes: list[int], in_size: int, *, bias: bool) -> Projection:
        """The projections `modules` (of the same input) as one."""
        sizes = list(zip(modules, out_sizes, strict=True))
        get, device, dtype = self._checkpoint.get, self._device, self._dtype
        weight = self._quantized(modules, (sum(out_sizes), in_size))
        if weight is None:
            weights = [get(f"{module}.weight", (size, in_size)).to(device, dtype) for module, size in sizes]
            weight = pack_weight(self._count(torch.cat(weights) if len(weights) > 1 else weights[0]))
        fused_bias = None
        if bias:
            biases = [get(f"{module}.bias", (size,)).to(device, dtype) for module, size in sizes]
            fused_bias = self._count(torch.cat(biases))
        return Projection(weight, fused_bias)

    def note(self) -> str:
        """See `Model.weight_note`."""
        if not self._integers:
            return ""
        if self.weight_bits >= 16:
            return f"the file's integers unpacked: {why_not()}"
        note = f"{self.weight_bits}-bit weights"
        return f"{note}, multiplied by torch: {why_not()}" if why_not() else note

    def _quantized(self, modules: list[str], shape: tuple[int, int]) -> QuantizedProduct | Tensor | None:
        """The projections' stored integers as one product; None if they are not all there, or of no use here."""
        names = [f"{module}.weight" for module in modules]
        if not all(name in self._integers for name in names):
            return None
        weight = concatenated([self._integers[name] for name in names])
        product = None if weight is None or weight.shape != shape else pack_quantized(weight)
        if weight is None or product is None:
            return None
        for name in names:
            self._checkpoint.skip(name)
        self.num_bytes += product.num_bytes
        self.weight_bits = min(self.weight_bits, weight.bits)
        return product

    def layer(self, index: int) -> DecoderLayer:
        """All of layer `index`."""
        config, prefix = self._config, f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        qkv_names = [f"{attention}.{kind}_proj" for kind in "qkv"]
        gate_up_names = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
        return DecoderLayer(
            input_norm=self.tensor(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self.linear(qkv_names, [query_size, kv_size, kv_size], hidden, bias=config.qkv_bias),
            head_norm=self._head_norm(attention) if config.qk_norm else None,
            tail=LayerTail(
                out=self.linear([f"{attention}.o_proj"], [hidden], query_size, bias=config.out_bias),
                post_norm=self.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
                gate_up=self.linear(gate_up_names, [inner, inner], hidden, bias=config.mlp_bias),
                down=self.linear([f"{mlp}.down_proj"], [hidden], inner, bias=config.mlp_bias),
            ),
            window=config.windows[index],
        )

    def _head_norm(self, attention: str) -> Tensor:
        """Qwen3's norms of query and key heads, one row a head, so that one call norms them all."""
        config = self._config
        query_norm = self.tensor(f"{attention}.q_norm.weight", config.head_dim).expand(config.num_heads, -1)
        key_norm = self.tensor(f"{attention}.k_norm.weight", config.head_dim).expand(config.num_kv_heads, -1)
        return torch.cat((query_norm, key_norm))

    def _count(self, tensor: Tensor) -> Tensor:
        self.num_bytes += tensor.numel() * tensor.element_size()
        return tensor
