"""The compiled kernels of a CPU alone, beside torch's own: least of several, one thread, in processor time.

products: microseconds of one product, weights in the cache, on SmolLM2-135M's matrices [query-key-value, gate and up,
down]; lmnb and torch on integers of 4 bits, oneDNN in bfloat16; and lmnb's G multiplications a second.
token: milliseconds of all products of one token, their weights from memory, in small pages and in huge ones: [layers,
output layer].
step: milliseconds of a forward pass of so many one-token rows of 100 tokens each: all layers in one call, and operation
by operation.
attention: of 256 new tokens behind 768, one layer, and its G multiplications a second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmnb.kernels import native
from lmnb.kernels.attention_plan import plan_native
from lmnb.kernels.huge_pages import HugePages
from lmnb.kernels.linear import linear, pack_weight
from lmnb.kernels.paged_attention import paged_attention
from lmnb.kernels.quantized_linear import NativeProduct, TorchProduct, random_quantized
from lmnb.runtime.batch import ForwardBatch
from lmnb.runtime.llama import LlamaModel
from lmnb.runtime.loading import load_model

_MATRICES = ((960, 576), (3072, 576), (576, 1536))
_LAYER, _NUM_LAYERS = (*_MATRICES, (576, 576)), 30
_HEAD = (49152, 576)
_ROWS, _STEP_ROWS = (1, 4, 16, 64, 256), (1, 2, 8, 24)
_TRIES = 30


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures. Raises SystemExit where there are no compiled kernels."""
    if native.prepare() is None:
        raise SystemExit(native.why_not())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return {
                "products_microseconds": {rows: products(rows) for rows in _ROWS},
                "token_milliseconds": token(),
                "step_milliseconds": steps(),
                "attention": attention(),
            }
    finally:
        torch.set_num_threads(threads)


def least(work: Callable[[], object], tries: int = _TRIES) -> float:
    """Seconds of this thread's processor time."""
    best = float("inf")
    for _ in range(tries):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best


def rounded(seconds: list[float], unit: float) -> list[float]:
    return [round(each * unit, 2) for each in seconds]


def products(rows: int) -> dict[str, list[float]]:
    """Each matrix's figures for so many rows."""
    found: dict[str, list[float]] = {"lmnb_4_bits": [], "torch_4_bits": [], "onednn_bfloat16": []}
    for outs, ins in _MATRICES:
        weight, x = random_quantized(outs, ins, 4), torch.randn(rows, ins).bfloat16()
        plain = pack_weight(weight.dequantized().bfloat16())
        ours, theirs = NativeProduct(weight), TorchProduct(weight)
        found["lmnb_4_bits"].append(least(lambda p=ours, x=x: p(x)))  # type: ignore[misc]
        found["torch_4_bits"].append(least(lambda p=theirs, x=x: p(x)))  # type: ignore[misc]
        found["onednn_bfloat16"].append(least(lambda w=plain, x=x: linear(x, w)))  # type: ignore[misc]
    rates = [rows * outs * ins / s for (outs, ins), s in zip(_MATRICES, found["lmnb_4_bits"], strict=True)]
    return {**{name: rounded(s, 1e6) for name, s in found.items()}, "lmnb_g_a_second": rounded(rates, 1e-9)}


def token() -> dict[str, list[float]]:
    """One row through matrices that no cache holds."""
    x = {ins: torch.randn(1, ins).bfloat16() for _, ins in _LAYER}
    weights = [random_quantized(*shape, 4) for shape in _LAYER]
    found = {}
    for name, keep in (("small_pages", torch.clone), ("huge_pages", HugePages().keep)):
        layers = [NativeProduct(weight, keep) for _ in range(_NUM_LAYERS) for weight in weights]
        head = NativeProduct(random_quantized(*_HEAD, 8), keep)
        seconds = [least(lambda a=layers: [p(x[p.num_inputs]) for p in a])]  # type: ignore[misc]
        found[name] = rounded([*seconds, least(lambda p=head: p(x[p.num_inputs], wide=True))], 1e3)  # type: ignore[misc]
        del layers, head
    return found


def steps() -> dict[int, dict[str, float]]:
    """The embedded model's forward pass."""
    model = load_model().model
    assert isinstance(model, LlamaModel)
    layout, together = model.kv_layout, model._native
    shape = (layout.num_layers, max(_STEP_ROWS) * 100, layout.num_kv_heads, layout.head_dim)
    keys, values = (list(torch.randn(shape).bfloat16()) for _ in range(2))
    found: dict[int, dict[str, float]] = {}
    for rows in _STEP_ROWS:
        batch = decode_batch(rows, 100)
        found[rows] = {}
        for name, call in (("one_call", together), ("operations", None)):
            model._native = call
            found[rows][name] = round(1e3 * least(lambda b=batch: model.forward(b, keys, values)), 2)  # type: ignore[misc]
    return found


def decode_batch(rows: int, length: int) -> ForwardBatch:
    """A step of one new token for each of `rows` requests, `length` tokens long."""
    table = torch.arange(rows * length).view(rows, length)
    return ForwardBatch(
        input_ids=torch.arange(rows) + 300,
        positions=torch.full((rows,), length - 1),
        out_slots=table[:, -1].contiguous(),
        slot_table=table,
        query_starts=[*range(rows + 1)],
        kv_lens=[length] * rows,
        logits_rows=torch.arange(rows),
        num_decode=rows,
    )


def attention() -> dict[str, float]:
    """One layer of a chunk of a prompt: 9 query heads over 3 of 64."""
    new, before, heads, kv_heads, size = 256, 768, 9, 3, 64
    whole = new + before

    def random(*shape: int) -> Tensor:
        return torch.randn(shape).bfloat16()

    queries, keys, values = random(new, heads, size), random(whole, kv_heads, size), random(whole, kv_heads, size)
    table = torch.arange(whole)[None]
    groups = heads // kv_heads
    plan = plan_native(table, [0, new], [whole], num_decode=0, shared_len=0, heads_per_kv=groups, window=None)
    seconds = least(lambda: paged_attention(queries, keys, values, plan, size**-0.5))
    multiplications = 2 * heads * size * sum(range(before + 1, whole + 1))
    return {"milliseconds": round(1e3 * seconds, 3), "g_a_second": round(multiplications / seconds / 1e9, 1)}
