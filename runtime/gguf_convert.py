"""Writes a GGUF file out as a standard transformers folder, which transformers itself can load too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmnb.errors import UnsupportedModelError
from lmnb.runtime.decoder_config import DecoderConfig, RopeScaling, llama3_inv_freq, parse_config
from lmnb.runtime.gguf_file import MODEL_TYPES, ROPE_FACTORS, GGUFFile
from lmnb.runtime.gguf_tokenizer import tokenizer_files
from lmnb.runtime.stored_integers import write_integers
from lmnb.runtime.weights import SINGLE_FILE

# Raised whenever the files written for one GGUF change: folders of other versions are converted again.
CONVERTER_VERSION = 2

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def convert_gguf(path: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, tokenizer files and weights of `path` into the empty `folder`;
    beside them the weights' integers, where lmnb computes with those."""
    from safetensors.torch import save_file

    file = GGUFFile(path)
    dtype = file.weight_dtype()
    tokenizer, tokenizer_settings = tokenizer_files(file)
    config = transformers_config(file, dtype)
    parse_config(config, path.name)  # refuse before the long part, not after it
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(file))
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", tokenizer_settings)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in file.tensors()}
    save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})
    write_integers(folder, file.integers())


def transformers_config(file: GGUFFile, dtype: torch.dtype) -> dict[str, Any]:
    """config.json's content for `file`."""
    model_type, prefix = MODEL_TYPES[file.architecture], file.architecture
    num_heads = int(file.require(f"{prefix}.attention.head_count"))
    hidden_size = int(file.require(f"{prefix}.embedding_length"))
    head_dim = int(file.get_own("attention.key_length") or file.get_own("rope.dimension_count") or 0)
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[model_type]],
        "model_type": model_type,
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": len(file.require("tokenizer.ggml.tokens")),
        "hidden_size": hidden_size,
        "intermediate_size": int(file.require(f"{prefix}.feed_forward_length")),
        "num_hidden_layers": int(file.require(f"{prefix}.block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(file.get_own("attention.head_count_kv") or num_heads),
        "head_dim": head_dim or hidden_size // num_heads,
        "hidden_act": "silu",
        "rms_norm_eps": _short(file.require(f"{prefix}.attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": int(file.require(f"{prefix}.context_length")),
        "tie_word_embeddings": not file.has_tensor("output.weight"),
        "attention_bias": file.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": file.has_tensor("blk.0.ffn_down.bias"),
        "use_cache": True,
        **_token_ids(file),
    }
    config["rope_parameters"] = _rope_parameters(file, config)
    window = file.get_own("attention.sliding_window")
    if window:
        raise UnsupportedModelError(
            f"{file.path.name} slides its attention over {window} tokens; use the model's transformers folder instead"
        )
    return config


def _short(value: float) -> float:
    """A float32 value as the decimal it was written as (1e-05, not 9.99999974e-06)."""
    return float(f"{value:.7g}")


def _token_ids(file: GGUFFile) -> dict[str, int]:
    found = {name: file.get(f"tokenizer.ggml.{key}_token_id") for name, key in
             (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding"))}  # fmt: skip
    return {name: int(value) for name, value in found.items() if value is not None}


def _generation_config(file: GGUFFile) -> dict[str, Any]:
    """Token ids, with every end token the file names (Llama 3's turn ends with another one than its text)."""
    ids: dict[str, Any] = dict(_token_ids(file))
    ends = [file.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    distinct = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if len(distinct) > 1:
        ids["eos_token_id"] = distinct
    return ids


def _rope_parameters(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    parameters: dict[str, Any] = {"rope_theta": _short(file.get_own("rope.freq_base", 10000.0)), "rope_type": "default"}
    kind = file.get_own("rope.scaling.type", "none")
    if kind == "linear":
        parameters.update(rope_type="linear", factor=_short(file.require(f"{file.architecture}.rope.scaling.factor")))
    elif kind != "none":
        raise UnsupportedModelError(f"{file.path.name} uses rope scaling {kind!r}; lmnb runs linear and llama3")
    if file.has_tensor(ROPE_FACTORS):
        unscaled = parse_config({**config, "rope_parameters": parameters}, file.path.name)
        parameters.update(_llama3_parameters(file.raw(ROPE_FACTORS), unscaled, file.path.name))
    return parameters


def _llama3_parameters(factors: Tensor, unscaled: DecoderConfig, name: str) -> dict[str, Any]:
    """Llama 3's scaling, which a GGUF keeps only as its result: the divisor of each rotary frequency."""
    scaling = RopeScaling(kind="llama3", factor=round(float(factors.max()), 3))
    inv_freq = unscaled.inv_freq()
    expected = inv_freq / llama3_inv_freq(inv_freq, scaling)
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-3):
        raise UnsupportedModelError(f"{name} stretches its rotary frequencies in a way that lmnb does not know")
    assert math.isfinite(scaling.factor)
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")
