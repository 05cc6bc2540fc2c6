"""What weights in fewer bits change, on real ones: SmolLM2-135M's in float32 on a CPU, each rounded and put back.

Over the text of README.md, as far as 768 tokens: the relative error of the logits, the mean Kullback-Leibler divergence
of the next token's distribution (nats), and how often the most likely token is another one. The model's file has 4-bit
weights; what they stand for, in bfloat16, is taken as exact. Rounding is all that differs: sums are float32 everywhere,
but for the first row, which computes with the same weights in bfloat16 and shows what that changes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmnb.kernels.quantized_linear import quantize_groups
from lmnb.kernels.rowwise_linear import quantize_rows
from lmnb.runtime.batch import ForwardBatch
from lmnb.runtime.llama import LlamaModel
from lmnb.runtime.loading import load_model
from lmnb.runtime.model_source import resolve_source
from lmnb.runtime.weights import Checkpoint, ReadBytes

_TOKENS = 768
_CPU = torch.device("cpu")


def _rows(kind: str) -> Callable[[Tensor], Tensor]:
    return lambda weight: quantize_rows([weight], kind, _CPU).dequantized()


ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "int8, a scale for 32 inputs": lambda weight: quantize_groups(weight).dequantized(),
    "int8, a scale for an output": _rows("int8"),
    "fp8, a scale for an output": _rows("fp8"),
}


class _Rounded:
    """Implements `Weights`: a checkpoint whose matrices for products went through `rounding`."""

    def __init__(self, checkpoint: Checkpoint, rounding: Callable[[Tensor], Tensor], with_head: bool) -> None:
        self._checkpoint, self._rounding, self._with_head = checkpoint, rounding, with_head
        self._seen_embedding = False

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        weight = self._checkpoint.get(name, shape).float()
        if name.endswith("_proj.weight"):
            return self._rounding(weight)
        if name == "lm_head.weight" or (name == "model.embed_tokens.weight" and self._seen_embedding):
            return self._rounding(weight) if self._with_head else weight
        self._seen_embedding |= name == "model.embed_tokens.weight"
        return weight

    def skip(self, name: str) -> None:
        self._checkpoint.skip(name)

    def expect_all_read(self, harmless: Iterable[str] = ()) -> None:
        self._checkpoint.expect_all_read(harmless)


def logits_of(model: LlamaModel, ids: list[int]) -> Tensor:
    """Float32 logits [len(ids), vocabulary] of one sequence."""
    layout, count = model.kv_layout, len(ids)
    shape = (layout.num_layers, count, layout.num_kv_heads, layout.head_dim)
    places = torch.arange(count)
    batch = ForwardBatch(
        input_ids=torch.tensor(ids), positions=places, out_slots=places, slot_table=places[None],
        query_starts=[0, count], kv_lens=[count], logits_rows=None,
    )  # fmt: skip
    pool = torch.empty(2, *shape, dtype=layout.dtype)
    return model.forward(batch, list(pool[0]), list(pool[1]))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    loaded = load_model(dtype="float32", device="cpu")
    model = loaded.model
    assert isinstance(model, LlamaModel)
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    ids = loaded.tokenizer.encode(text)[:_TOKENS]
    exact = logits_of(model, ids)
    folder, name = resolve_source(None)
    report: dict[str, Any] = {"tokens": len(ids)}
    computed = load_model(dtype="bfloat16", device="cpu", quantization="none").model
    assert isinstance(computed, LlamaModel)
    report["computed in bfloat16"] = compared(logits_of(computed, ids), exact)
    for label, rounding in ROUNDINGS.items():
        for with_head in (True, False):
            with Checkpoint(folder, _CPU, ReadBytes()) as checkpoint:
                weights = _Rounded(checkpoint, rounding, with_head)
                rounded = LlamaModel(name, model.config, weights, torch.float32, _CPU)
            key = label if with_head else f"{label}; output layer as it was"
            report[key] = compared(logits_of(rounded, ids), exact)
    return report


def compared(got: Tensor, want: Tensor) -> dict[str, float]:
    """Logits beside others; what is the same for all tokens of a row changes nothing."""
    got, want = got - got.mean(-1, keepdim=True), want - want.mean(-1, keepdim=True)
    theirs, ours = want.log_softmax(-1), got.log_softmax(-1)
    return {
        "logits_error": round(float((got - want).norm() / want.norm()), 5),
        "divergence": round(float((theirs.exp() * (theirs - ours)).sum(-1).mean()), 6),
        "other_best_token": round(float((got.argmax(-1) != want.argmax(-1)).float().mean()), 4),
    }
