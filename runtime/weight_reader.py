"""Reads a decoder's weights from a checkpoint: fused, laid out for products, and counted."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lmnb.errors import UnsupportedModelError
from lmnb.kernels.decoder_layers import DecoderLayer
from lmnb.kernels.eight_bit import EightBitWeights
from lmnb.kernels.huge_pages import HugePages
from lmnb.kernels.linear import Projection, pack_weight
from lmnb.kernels.native import unused_unit, why_not
from lmnb.kernels.quantized_linear import (
    QuantizedProduct,
    QuantizedWeight,
    concatenated,
    pack_quantized,
)
from lmnb.runtime.decoder_config import DecoderConfig
from lmnb.runtime.weights import Weights


def unpacked_note(why: str) -> str:
    """A `Model.weight_note`: the weights that a file's integers stand for are computed with, and why."""
    return f"the file's integers unpacked: {why}"


class WeightReader:
    """Reads, fuses and lays out the tensors of a checkpoint, and counts their bytes."""

    def __init__(
        self,
        name: str,
        checkpoint: Weights,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        integers: Mapping[str, QuantizedWeight],
        eight_bit: EightBitWeights | None,
    ) -> None:
        self.num_bytes = 0
        self.weight_bits = dtype.itemsize * 8  # the fewest bits of any weight
        self.key_reach = 0.0  # the largest number that biases alone put into a key
        self._checkpoint, self._config, self._dtype, self._device = checkpoint, config, dtype, device
        self._name, self._integers, self._eight_bit, self._memory = name, integers, eight_bit, HugePages()

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor as it is, in the model's dtype and on its device."""
        return self._count(self._checkpoint.get(name, shape).to(self._device, self._dtype))

    def linear(
        self, modules: list[str], out_sizes: list[int], in_size: int, *, bias: bool, is_head: bool = False
    ) -> Projection:
        """The projections `modules` (of the same input) as one."""
        sizes = list(zip(modules, out_sizes, strict=True))
        get, device, dtype = self._checkpoint.get, self._device, self._dtype
        weight: Tensor | QuantizedProduct | None = self._quantized(modules, (sum(out_sizes), in_size))
        if weight is None:
            weights = [get(f"{module}.weight", (size, in_size)) for module, size in sizes]
            weight = self._in_eight_bits(weights, is_head)
        if weight is None:
            weights = [each.to(device, dtype) for each in weights]
            weight = pack_weight(self._count(torch.cat(weights) if len(weights) > 1 else weights[0]))
        fused_bias = None
        if bias:
            biases = [get(f"{module}.bias", (size,)).to(device, dtype) for module, size in sizes]
            fused_bias = self._count(torch.cat(biases))
        return Projection(weight, fused_bias)

    def note(self) -> str:
        """See `Model.weight_note`."""
        without = unused_unit() if self._device.type == "cpu" else ""
        if self._eight_bit is not None:
            return ", ".join(filter(None, (self._eight_bit.note, without)))
        if not self._integers:
            return ""
        if self.weight_bits >= 16:
            return unpacked_note(why_not())
        note = ", ".join(filter(None, (f"{self.weight_bits}-bit weights", without)))
        return f"{note}, multiplied by torch: {why_not()}" if why_not() else note

    def _quantized(self, modules: list[str], shape: tuple[int, int]) -> QuantizedProduct | Tensor | None:
        """The projections' stored integers as one product; None if they are not all there, or of no use here."""
        names = [f"{module}.weight" for module in modules]
        if not all(name in self._integers for name in names):
            return None
        weight = concatenated([self._integers[name] for name in names])
        product = None if weight is None or weight.shape != shape else pack_quantized(weight, self._memory.keep)
        if weight is None or product is None:
            return None
        for name in names:
            self._checkpoint.skip(name)
        self.num_bytes += product.num_bytes
        self.weight_bits = min(self.weight_bits, weight.bits)
        return product

    def _in_eight_bits(self, weights: list[Tensor], is_head: bool) -> QuantizedProduct | None:
        """The product with `weights` in 8 bits, if that was asked for."""
        if self._eight_bit is None or (is_head and not self._eight_bit.takes_head):
            return None
        try:
            product = self._eight_bit.product(weights, self._memory.keep)
        except ValueError as error:
            raise UnsupportedModelError(
                f"{self._name} has {error}: quantization={self._eight_bit.kind!r} cannot be had; leave it out"
            ) from None
        self.num_bytes += product.num_bytes
        self.weight_bits = 8
        return product

    def layer(self, index: int) -> DecoderLayer:
        """All of layer `index`."""
        config, prefix = self._config, f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        qkv_names = [f"{attention}.{kind}_proj" for kind in "qkv"]
        gate_up_names = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
        qkv = self.linear(qkv_names, [query_size, kv_size, kv_size], hidden, bias=config.qkv_bias)
        if qkv.bias is not None and not config.qk_norm:
            pairs = qkv.bias[query_size : query_size + kv_size].view(config.num_kv_heads, 2, -1).float()
            self.key_reach = max(self.key_reach, float(pairs.norm(dim=1).max()))  # a rotation keeps a pair's norm
        return DecoderLayer(
            input_norm=self.tensor(f"{prefix}.input_layernorm.weight", hidden),
            qkv=qkv,
            head_norm=self._head_norm(attention) if config.qk_norm else None,
            out=self.linear([f"{attention}.o_proj"], [hidden], query_size, bias=config.out_bias),
            post_norm=self.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self.linear(gate_up_names, [inner, inner], hidden, bias=config.mlp_bias),
            down=self.linear([f"{mlp}.down_proj"], [hidden], inner, bias=config.mlp_bias),
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
