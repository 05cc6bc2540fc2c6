"""One GGUF file: its metadata, and its tensors under transformers' names, dequantised.

It knows the Llama-family architectures of llama.cpp and how they differ from transformers' checkpoints;
it writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lmnb.errors import ModelNotFoundError, UnsupportedModelError
from lmnb.kernels.quantized_linear import QuantizedWeight
from lmnb.runtime.gguf_integers import stored_integers

# llama.cpp's architecture -> transformers' model_type. Mistral's files say "llama": the computation is the same.
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
ROPE_FACTORS = "rope_freqs.weight"


class _StoredTensor(Protocol):
    """What the gguf reader says of one tensor."""

    name: str
    tensor_type: Any
    data: Any
    n_elements: int


class GGUFFile:
    """An open file (memory-mapped by the `gguf` reader)."""

    def __init__(self, path: Path) -> None:
        """Raises ModelNotFoundError if `path` is no readable GGUF, UnsupportedModelError for another architecture."""
        from gguf import GGUFReader

        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelNotFoundError(f"{path} is not a whole GGUF file ({error}); fetch it again") from error
        self.path = path
        self.architecture = str(self.get("general.architecture"))
        if self.architecture not in MODEL_TYPES:
            supported = ", ".join(MODEL_TYPES)
            raise UnsupportedModelError(
                f"{path.name} is a {self.architecture!r} model; lmnb runs these GGUF architectures: {supported}"
            )
        if self.get_own("expert_count"):
            raise UnsupportedModelError(f"{path.name} is a mixture of experts, which lmnb does not run")
        self._tensors: dict[str, _StoredTensor] = {tensor.name: tensor for tensor in self._reader.tensors}

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value as plain Python: a number, text, or list of them."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def get_own(self, key: str, default: Any = None) -> Any:
        """A metadata value of this architecture, such as `block_count`."""
        return self.get(f"{self.architecture}.{key}", default)

    def require(self, key: str) -> Any:
        """A metadata value that must be there, by its whole key. Raises UnsupportedModelError."""
        value = self.get(key)
        if value is None:
            raise UnsupportedModelError(f"{self.path.name} lacks the metadata {key!r}, which lmnb needs")
        return value

    def has_tensor(self, name: str) -> bool:
        """Whether a tensor is stored under llama.cpp's `name`."""
        return name in self._tensors

    def raw(self, name: str) -> Tensor:
        """The tensor under llama.cpp's `name`, float32, as stored but for its quantisation."""
        from gguf.quants import dequantize

        stored = self._tensors[name]
        try:
            values = dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            kind = stored.tensor_type.name
            raise UnsupportedModelError(f"{self.path.name} holds {kind} weights, which cannot be unpacked") from error
        return torch.from_numpy(np.array(values, dtype=np.float32))

    def weight_dtype(self) -> torch.dtype:
        """The narrowest dtype that loses nothing against how most weights are stored.

        For quantised ones bfloat16: its rounding (0.4 % at most) is far below the quantisation's own.
        """
        sizes: dict[str, int] = {}
        for tensor in self._tensors.values():
            kind = str(tensor.tensor_type.name)
            sizes[kind] = sizes.get(kind, 0) + int(tensor.n_elements)
        most = max(sizes, key=lambda kind: sizes[kind])
        return {"F32": torch.float32, "F64": torch.float32, "F16": torch.float16}.get(most, torch.bfloat16)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight under transformers' name, float32, in transformers' order of rows."""
        for name in self._tensors:
            if name == ROPE_FACTORS:  # rotary factors: part of the configuration
                continue
            yield self._transformers_name(name), self._in_transformers_order(name, self.raw(name))

    def integers(self) -> Iterator[tuple[str, QuantizedWeight]]:
        """The matrices whose integers lmnb computes with as they are, named and ordered as in `tensors`."""
        for name, tensor in self._tensors.items():
            weight = stored_integers(tensor.data, str(tensor.tensor_type.name))
            if weight is None:
                continue
            integers, scale, minimum = (
                None if part is None else self._in_transformers_order(name, part)
                for part in (weight.integers, weight.scale, weight.minimum)
            )
            assert integers is not None
            assert scale is not None
            yield self._transformers_name(name), QuantizedWeight(integers, scale, minimum)

    def _transformers_name(self, name: str) -> str:
        if name in _GLOBAL_NAMES:
            return _GLOBAL_NAMES[name]
        match = _LAYER_TENSOR.fullmatch(name)
        if match is None or match[2] not in _LAYER_NAMES:
            raise UnsupportedModelError(f"{self.path.name} holds a tensor that lmnb does not know: {name!r}")
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"

    def _in_transformers_order(self, name: str, tensor: Tensor) -> Tensor:
        """Undo llama.cpp's order of query and key rows: for "llama" it pairs rows (2i, 2i + 1) of a head for
        the rotation, where transformers pairs (i, i + half)."""
        match = _LAYER_TENSOR.fullmatch(name)
        if self.architecture != "llama" or match is None or match[2] not in ("attn_q", "attn_k"):
            return tensor
        num_heads = self.require(f"{self.architecture}.attention.head_count")
        if match[2] == "attn_k":
            num_heads = self.get_own("attention.head_count_kv") or num_heads
        rest = tensor.shape[1:]
        pairs = tensor.reshape(num_heads, tensor.shape[0] // num_heads // 2, 2, *rest)
        return pairs.transpose(1, 2).reshape(tensor.shape)
