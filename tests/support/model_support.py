"""Tiny random transformers models on disk, and a runner that drives a `Model` over a poisoned KV pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from small_tokenizers import small_tokenizer
from torch import Tensor

from lmnb.runtime.batch import ForwardBatch, Model
from lmnb.runtime.prompt_layout import PromptLayout

NUM_SLOTS = 4096
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied-mha": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama-bias-gqa": {"attention_bias": True, "mlp_bias": True, "num_attention_heads": 8, "num_key_value_heads": 1},
    "llama-linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    "llama-llama3": {
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"sliding_window": None, "head_dim": 32},
    "mistral-window": {"sliding_window": 9},
    "qwen2": {},
    "qwen2-window": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "qwen3": {"head_dim": 32},
    "qwen3-bias": {"head_dim": 16, "attention_bias": True, "num_key_value_heads": 1},
}
# Models that run through the transformers library's own code.
OTHER_KINDS: dict[str, dict[str, Any]] = {
    "gemma2": {
        "head_dim": 16,
        "sliding_window": 9,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 9.0,
        "query_pre_attn_scalar": 40,
    },
    "gemma3_text": {"head_dim": 16, "sliding_window": 9},  # other rotary frequencies in its sliding layers
    "phi": {},  # rotates a part of each head, has layer norms and biases
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},  # learned positions
    "mixtral": {"num_local_experts": 4},
    "starcoder2": {"sliding_window": 6},
    "stablelm": {},  # does not hand keywords down to its layers
    "granite": {"logits_scaling": 0.5, "attention_multiplier": 0.1},
    "llama-yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
}


def random_model(kind: str, **changes: Any) -> Any:
    """A random transformers model of one of `KINDS` or `OTHER_KINDS`, its configuration changed by `changes`."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[kind.partition("-")[0]](**{**SIZES, **(KINDS | OTHER_KINDS).get(kind, {}), **changes})
    torch.manual_seed(sum(map(ord, kind)))
    # Eager attention knows soft caps, which the library's other kinds drop in some of its releases.
    how = {"attn_implementation": "eager"} if "softcap" in str(config.to_dict()) else {}
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **how).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # fresh norms are all one, fresh biases zero: errors would not show
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def tiny_model(kind: str, folder: Path, **save_options: Any) -> Any:
    """Save a random model of one of the kinds, with a tokenizer, to `folder`; returns transformers' own model."""
    return save_model(random_model(kind), folder, **save_options)


def save_model(model: Any, folder: Path, **save_options: Any) -> Any:
    """Save a model, with a tokenizer, to `folder`; returns it."""
    model.save_pretrained(folder, **save_options)
    (folder / "tokenizer.json").write_text(small_tokenizer("gpt2")._trusted.to_str(), "utf-8")
    return model


def reference_logits(model: Any, ids: list[int]) -> Tensor:
    """transformers' logits [len(ids), vocab] of one sequence, float32."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([ids], device=model.device)).logits[0].float().cpu()
    return logits


def masked_logits(model: Any, prompt: tuple[int, ...], layout: PromptLayout) -> Tensor:
    """Logits [len(prompt), vocab] from transformers, with the mask and positions that the layout means."""
    n = len(prompt)
    seen = torch.zeros(n, n, dtype=torch.bool)
    positions = torch.zeros(n, dtype=torch.long)
    for i in range(n):
        section = layout.section_at(i)
        visible = [j for a, b in (*section.sees, (section.start, i + 1)) for j in range(a, b)]
        seen[i, visible[-(getattr(model.config, "sliding_window", None) or n) :]] = True
        positions[i] = section.position + i - section.start
    mask = torch.zeros(n, n).masked_fill(~seen, float("-inf"))[None, None]
    with torch.no_grad():
        at = model.device
        out = model(torch.tensor([prompt]).to(at), attention_mask=mask.to(at), position_ids=positions[None].to(at))
    logits: Tensor = out.logits[0].float().cpu()
    return logits


class PagedRunner:
    """Sequences over a pool whose unused slots hold NaN, as far apart and out of order as can be."""

    def __init__(self, model: Model, seed: int = 0) -> None:
        layout = model.kv_layout
        shape = (NUM_SLOTS, layout.num_kv_heads, layout.head_dim)
        self.model = model
        poison = torch.full(shape, float("nan"), dtype=layout.dtype, device=layout.device)
        self.keys = [poison.clone() for _ in range(layout.num_layers)]
        self.values = [poison.clone() for _ in range(layout.num_layers)]
        self.slots: dict[str, list[int]] = {}
        self._free = torch.randperm(NUM_SLOTS, generator=torch.Generator().manual_seed(seed)).tolist()

    def fork(self, parent: str, child: str) -> None:
        """A sequence that shares all of another's slots so far."""
        self.slots[child] = list(self.slots[parent])

    def step(
        self, new_ids: dict[str, list[int]], *, num_decode: int = 0, shared_len: int = 0, rows: list[int] | None = None
    ) -> Tensor:
        """One forward pass that extends each named sequence; logits of all new tokens, or of `rows`."""
        positions: list[int] = []
        out_slots: list[int] = []
        starts, kv_lens = [0], []
        for name, ids in new_ids.items():
            owned = self.slots.setdefault(name, [])
            positions += range(len(owned), len(owned) + len(ids))
            fresh = [self._free.pop() for _ in ids]
            owned += fresh
            out_slots += fresh
            starts.append(starts[-1] + len(ids))
            kv_lens.append(len(owned))
        table = torch.full((len(kv_lens), max(kv_lens) + 3), -1)  # no slot: reading it fails or gives nonsense
        for row, name in enumerate(new_ids):
            table[row, : kv_lens[row]] = torch.tensor(self.slots[name])
        device = self.model.kv_layout.device
        batch = ForwardBatch(
            input_ids=torch.tensor([i for ids in new_ids.values() for i in ids], device=device),
            positions=torch.tensor(positions, device=device),
            out_slots=torch.tensor(out_slots, device=device),
            slot_table=table.to(device),
            query_starts=starts,
            kv_lens=kv_lens,
            logits_rows=torch.tensor(range(starts[-1]) if rows is None else rows, device=device),
            num_decode=num_decode,
            shared_len=shared_len,
        )
        return self.model.forward(batch, self.keys, self.values).cpu()
