"""What keys and values in 8 bits do to a model's predictions: SmolLM2-135M on two texts of this checkout, float32.

Each text is one prompt; the logits at all of its places are compared with those over a pool in float32. agreement: at
how many places the likeliest token is the same. kl_nats: the mean Kullback-Leibler divergence of the distributions.
mean_surprise: the mean negative log-probability of the text's next token.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lmnb.kernels.fp8 import FP8
from lmnb.runtime.batch import ForwardBatch
from lmnb.runtime.loading import LoadedModel, load_model

TEXTS = ("LICENSE", "docs/architecture.md")
NUM_TOKENS = 700  # of each text


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The comparison for pools in float32 (the reference), bfloat16 and float8."""
    loaded = load_model(dtype="float32", device="cpu")
    root = Path(__file__).resolve().parent.parent
    texts = [loaded.tokenizer.encode((root / name).read_text("utf-8"))[:NUM_TOKENS] for name in TEXTS]
    exact = logits(loaded, texts, torch.float32)
    return {
        "float32": {"mean_surprise": surprise(exact, texts)},
        "fp8_e4m3": compared(logits(loaded, texts, FP8), exact, texts),
        "bfloat16 model": compared(logits(load_model(dtype="bfloat16", device="cpu", quantization="none"), texts,
                                          torch.bfloat16), exact, texts),
    }  # fmt: skip


def logits(loaded: LoadedModel, texts: list[list[int]], stored: torch.dtype) -> Tensor:
    """At all places but each text's last one, over a pool in `stored`: float32 [places, vocab_size]."""
    model, layout = loaded.model, loaded.model.kv_layout
    rows = []
    for ids in texts:
        places = torch.arange(len(ids))
        shape = (len(ids), layout.num_kv_heads, layout.head_dim)
        keys, values = ([torch.zeros(shape).to(stored) for _ in range(layout.num_layers)] for _ in range(2))
        batch = ForwardBatch(
            input_ids=torch.tensor(ids),
            positions=places,
            out_slots=places,
            slot_table=places[None],
            query_starts=[0, len(ids)],
            kv_lens=[len(ids)],
            logits_rows=places[:-1],
        )
        rows.append(model.forward(batch, keys, values).float())
    return torch.cat(rows)


def surprise(found: Tensor, texts: list[list[int]]) -> float:
    """Mean negative log-probability of the next tokens."""
    following = torch.tensor([token for ids in texts for token in ids[1:]])
    return round(float(functional.cross_entropy(found, following)), 4)


def compared(found: Tensor, exact: Tensor, texts: list[list[int]]) -> dict[str, float]:
    """See the module's docstring. spread: the root mean square of the logits' differences, in their own spread."""
    own, theirs = found.log_softmax(-1), exact.log_softmax(-1)
    centred = exact - exact.mean(-1, keepdim=True)
    return {
        "mean_surprise": surprise(found, texts),
        "agreement": round(float((found.argmax(-1) == exact.argmax(-1)).float().mean()), 4),
        "kl_nats": round(float((theirs.exp() * (theirs - own)).sum(-1).mean()), 6),
        "spread": round(float((found - exact).norm() / centred.norm()), 4),
    }
