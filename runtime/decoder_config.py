"""What a Llama-like decoder needs to know, read from a transformers config.json (versions 4 and 5).

Anything in the file that would change the computation and is not run here is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmnb.errors import UnsupportedModelError
from lmnb.runtime.batch import KVLayout

FUSED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


class NotFusedError(UnsupportedModelError):
    """The decoder of `llama.py` does not compute this; the transformers library's own code may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts: not at all, evenly, or as Llama 3 does."""

    kind: str = "default"  # default, linear or llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes and switches of one decoder."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    context_tokens: int
    tie_word_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]  # per layer: how many tokens attention sees; None: all

    def kv_layout(self, dtype: torch.dtype, device: torch.device) -> KVLayout:
        """How keys and values lie in a pool, in the model's own dtype."""
        return KVLayout(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
            device=device,
        )

    def inv_freq(self) -> Tensor:
        """Rotary frequencies, float32 [head_dim / 2]."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        inv_freq = 1.0 / (self.rope_theta**exponents)
        scaling = self.rope_scaling
        if scaling.kind == "linear":
            return inv_freq / scaling.factor
        if scaling.kind == "llama3":
            return llama3_inv_freq(inv_freq, scaling)
        return inv_freq


def llama3_inv_freq(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's stretch: slow waves by `factor`, fast ones not at all, and a linear ramp between the two."""
    waves = scaling.original_context * inv_freq / (2 * math.pi)  # how often each wave fits the original context
    keep = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0, 1)
    return inv_freq * (keep + (1 - keep) / scaling.factor)


def parse_config(config: Mapping[str, Any], name: str) -> DecoderConfig:
    """Read config.json's content; `name` is the model's, for messages. Raises UnsupportedModelError; NotFusedError
    if another decoder may run it."""
    model_type = config.get("model_type")
    if model_type not in FUSED_MODEL_TYPES:
        raise NotFusedError(f"{name} is a {model_type!r} model, not one of {', '.join(FUSED_MODEL_TYPES)}")
    _refuse_what_is_not_run(config, name)
    hidden_size, num_heads = _integer(config, "hidden_size", name), _integer(config, "num_attention_heads", name)
    num_layers = _integer(config, "num_hidden_layers", name)
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise UnsupportedModelError(f"{name}: {num_heads} attention heads cannot share {num_kv_heads} KV heads evenly")
    rope_theta, rope_scaling = _rope(config, name)
    attention_bias = bool(config.get("attention_bias", False))
    return DecoderConfig(
        model_type=model_type,
        vocab_size=_integer(config, "vocab_size", name),
        hidden_size=hidden_size,
        intermediate_size=_integer(config, "intermediate_size", name),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=config.get("head_dim") or (128 if model_type == "qwen3" else hidden_size // num_heads),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        context_tokens=_integer(config, "max_position_embeddings", name),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=model_type == "qwen2" or (model_type != "mistral" and attention_bias),
        out_bias=model_type in ("llama", "qwen3") and attention_bias,
        mlp_bias=model_type == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=model_type == "qwen3",
        windows=_windows(config, model_type, num_layers, name),
    )


def _integer(config: Mapping[str, Any], key: str, name: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise UnsupportedModelError(f"{name}: config.json says {key} = {value!r}, which must be a positive number")
    return value


def _refuse_what_is_not_run(config: Mapping[str, Any], name: str) -> None:
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModelError(
            f"{name} has weights quantised by {method!r}, which lmnb does not read; use the unquantised model or a GGUF"
        )
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise NotFusedError(f"{name} uses the activation {activation!r}")


def _rope(config: Mapping[str, Any], name: str) -> tuple[float, RopeScaling]:
    # transformers 5 keeps theta and scaling in one place; 4 had `rope_theta` and an optional `rope_scaling`.
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in found.values()):
        raise NotFusedError(f"{name} has other rotary parameters in different layers")
    theta = float(found.get("rope_theta") or config.get("rope_theta") or 10000.0)
    partial = found.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise NotFusedError(f"{name} rotates only {partial} of each head")
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling(kind=kind, factor=float(found["factor"]))
    if kind == "llama3":
        original = found.get("original_max_position_embeddings") or config["max_position_embeddings"]
        return theta, RopeScaling(
            kind=kind,
            factor=float(found["factor"]),
            low_freq_factor=float(found["low_freq_factor"]),
            high_freq_factor=float(found["high_freq_factor"]),
            original_context=int(original),
        )
    raise NotFusedError(f"{name} uses rope scaling {kind!r}")


def _windows(config: Mapping[str, Any], model_type: str, num_layers: int, name: str) -> tuple[int | None, ...]:
    window = config.get("sliding_window", 4096 if model_type == "mistral" else None)  # transformers' own default
    if model_type in ("qwen2", "qwen3") and not config.get("use_sliding_window", False):
        window = None
    if model_type == "llama" or window is None:
        return (None,) * num_layers
    layer_types = config.get("layer_types")
    if layer_types is None:
        # Mistral slides in every layer; Qwen keeps full attention in its first `max_window_layers`.
        first = config.get("max_window_layers", 28) if model_type.startswith("qwen") else 0
        return tuple(window if layer >= first else None for layer in range(num_layers))
    unknown = set(layer_types) - {"full_attention", "sliding_attention"}
    if unknown or len(layer_types) != num_layers:
        raise UnsupportedModelError(f"{name}: config.json's layer_types ({layer_types}) are not ones that lmnb runs")
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
