"""Writes transformers models as GGUF files the way llama.cpp's converter does, independent of our reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from small_tokenizers import small_tokenizer

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOKEN_SPEC = json.loads(small_tokenizer("digits")._trusted.to_str())
TOKENS = sorted(TOKEN_SPEC["model"]["vocab"], key=TOKEN_SPEC["model"]["vocab"].__getitem__)


def write_gguf(
    path: Path,
    model: Any,
    *,
    pre: str = "smollm",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    rope_factors: np.ndarray | None = None,
    skip: tuple[str, ...] = (),
) -> Path:
    """Write `model` (with a vocabulary as large as `TOKENS`); `metadata` adds or replaces numbers and texts."""
    config = model.config
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    values: dict[str, Any] = {
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.key_length": config.head_dim if hasattr(config, "head_dim") else None,
        f"{arch}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
        **(metadata or {}),
    }
    for key, value in values.items():
        if key in skip or value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_list(TOKENS)
    writer.add_token_types([control if index < 3 else normal for index in range(len(TOKENS))])
    writer.add_token_merges([" ".join(merge) for merge in TOKEN_SPEC["model"]["merges"]])
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _add(writer, name, tensor.float().numpy(), config, kind)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, config: Any, kind: gguf.GGMLQuantizationType) -> None:
    if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    stored = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(name)
    if name == "lm_head.weight":
        stored = "output.weight"
    if stored is None:
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        module, _, ending = rest.rpartition(".")
        stored = f"blk.{layer}.{NAMES[module]}.{ending}"
    if values.ndim > 1 and kind != gguf.GGMLQuantizationType.F32:
        writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(stored, np.ascontiguousarray(values))
