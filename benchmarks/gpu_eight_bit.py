"""Products with 8-bit weights at Llama-3.1-8B's shapes, beside cuBLAS in bfloat16: suites of `gpu_kernels.py`.

`eight` is what the engine runs, by the number of rows; `eight_matvec` and `eight_matmul` try launch settings;
`eight_peers` are torch's own operators. Bytes are those of the weight as it is stored; every timed call reads weights
that are not in the L2 cache. Errors are relative, against the product in float64 with the weight before it was
quantised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks.gpu_timing import DEVICE, HIDDEN, INNER, VOCAB, graphed, tried
from lmnb.kernels.rowwise_linear import (
    GROUP,
    PackedRows,
    RowwiseProduct,
    RowwiseWeight,
    new_scratch,
    packed,
    quantize_rows,
)
from lmnb.kernels.rowwise_linear_triton import rowwise_matmul, rowwise_matvec

SHAPES = {
    "qkv": (6144, HIDDEN),
    "out": (HIDDEN, HIDDEN),
    "gate_up": (2 * INNER, HIDDEN),
    "down": (HIDDEN, INNER),
    "head": (VOCAB, HIDDEN),
}
ROWS = (1, 8, 64, 256, 8192)
Weight = TypeVar("Weight")
# By rows: (outputs and rows of a tile; stages; warps; inputs that lie together), and the splits if not the default.
TILES = {
    8: [
        (128, 16, 4, 4, 128, 0), (128, 16, 3, 4, 128, 0), (64, 16, 4, 4, 128, 0), (64, 16, 4, 4, 128, 2),
        (64, 16, 3, 4, 128, 0), (64, 16, 2, 4, 256, 0), (64, 16, 3, 4, 256, 0), (64, 16, 4, 4, 256, 0),
        (128, 16, 2, 4, 256, 0), (128, 16, 3, 4, 256, 0), (128, 16, 3, 8, 256, 0), (64, 16, 3, 4, 256, 2),
    ],
    64: [
        (64, 64, 4, 4, 128, 0), (64, 64, 2, 4, 128, 0), (128, 64, 3, 8, 128, 0), (128, 64, 2, 8, 128, 0),
        (64, 64, 2, 4, 256, 0), (64, 64, 3, 4, 256, 0), (128, 64, 2, 8, 256, 0), (128, 64, 3, 8, 256, 0),
    ],
    256: [
        (128, 64, 4, 8, 128, 0), (128, 64, 3, 8, 128, 0), (128, 64, 2, 8, 128, 0), (128, 128, 2, 8, 128, 0),
        (64, 128, 3, 4, 128, 0), (64, 128, 2, 4, 128, 0), (64, 64, 3, 4, 128, 0), (256, 64, 3, 8, 128, 0),
        (128, 64, 2, 8, 256, 0), (128, 64, 3, 8, 256, 0), (128, 128, 2, 8, 256, 0), (64, 128, 2, 4, 256, 0),
        (64, 64, 2, 4, 256, 0), (256, 64, 2, 8, 256, 0),
    ],
}  # fmt: skip


@cache
def plain(name: str) -> list[Tensor]:
    """So many weights that one that comes round again has left the cache."""
    num_out, size = SHAPES[name]
    copies = max(2, int(2e8) // (num_out * size) + 1)
    return [torch.randn(num_out, size, dtype=torch.bfloat16, device=DEVICE) for _ in range(copies)]


@cache
def eight(name: str, kind: str) -> list[RowwiseWeight]:
    return [quantize_rows([weight], kind, torch.device(DEVICE)) for weight in plain(name)]


@cache
def laid_out(name: str, kind: str, group: int = GROUP) -> list[PackedRows]:
    return [packed(weight, group) for weight in eight(name, kind)]


@cache
def products(name: str, kind: str) -> list[RowwiseProduct]:
    scratch = new_scratch(INNER, torch.bfloat16, torch.device(DEVICE))
    return [RowwiseProduct(weight, scratch) for weight in eight(name, kind)]


def inputs(name: str, rows: int) -> Tensor:
    return torch.randn(rows, SHAPES[name][1], dtype=torch.bfloat16, device=DEVICE)


def timed(
    label: str, name: str, rows: int, width: int, product: Callable[[Tensor, Weight], Tensor], weights: Sequence[Weight]
) -> None:
    """One line: the time of a call, what it reads of weights `width` bytes a number, and its operations."""
    x, (num_out, size) = inputs(name, rows), SHAPES[name]

    def measure() -> str:
        x64 = x[:64].double()
        want = x64 @ plain(name)[0][:2048].double().t()
        got = product(x, weights[0])[:64, :2048].double()
        wrong = float((got - want).norm() / want.norm())
        took = graphed(lambda i: product(x, weights[i % len(weights)]), 12 if rows <= 512 else 2)
        return (
            f"{took * 1e6:8.1f} us {num_out * size * width / took / 1e9:6.0f} GB/s "
            f"{2 * rows * num_out * size / took / 1e12:6.1f} TFLOP/s, error {wrong:.4f}"
        )

    tried(f"{name} x {rows}: {label}", measure)


def call(x: Tensor, product: RowwiseProduct) -> Tensor:
    return product(x)


def by_pieces(x: Tensor, product: RowwiseProduct) -> Tensor:
    return product.by_pieces(x, None)


def table() -> None:
    for name in SHAPES:
        for rows in ROWS:
            if name == "head" and rows > 512:
                continue  # only the last token of a prompt is asked for
            timed("cuBLAS, bfloat16", name, rows, 2, torch.nn.functional.linear, plain(name))
            timed("int8", name, rows, 1, call, products(name, "int8"))
            timed("fp8", name, rows, 1, call, products(name, "fp8"))


def tune_matvec() -> None:
    for name in ("out", "gate_up", "down"):
        for kind in ("int8", "fp8"):
            for block_r, block_w, warps in (
                (4, 256, 2), (2, 256, 2), (8, 256, 2), (4, 128, 1), (8, 128, 1), (2, 256, 1), (4, 512, 2), (2, 512, 2),
                (4, 256, 1), (8, 256, 4), (1, 512, 1),
            ):  # fmt: skip
                options = {"block_r": block_r, "block_w": block_w, "warps": warps}
                timed(f"{kind} {options}", name, 1, 1, partial(rowwise_matvec, **options), laid_out(name, kind))


def tune_matmul() -> None:
    for rows, tiles in TILES.items():
        for *tile, group, splits in tiles:
            product = partial(rowwise_matmul, tile=tuple(tile), splits=splits or None)
            for name in ("out", "gate_up", "down"):
                label = f"{tile} group={group} splits={splits or 'auto'}"
                timed(label, name, rows, 1, product, laid_out(name, "int8", group))
    for rows in (256, 512, 768):  # where unpacking for cuBLAS begins to pay
        timed("by pieces", "gate_up", rows, 1, by_pieces, products("gate_up", "int8"))
        timed("by tiles", "gate_up", rows, 1, rowwise_matmul, laid_out("gate_up", "int8"))


def peers() -> None:
    """torch's operators for the same: weight-only int8, and float8 times float8 (which rounds activations as well)."""
    for rows in ROWS:
        ones = torch.ones(rows, 1, device=DEVICE)

        def int8pack(x: Tensor, weight: RowwiseWeight) -> Tensor:
            return torch._weight_int8pack_mm(x, weight.values, weight.scale.bfloat16())

        def scaled(x: Tensor, weight: RowwiseWeight, ones: Tensor = ones) -> Tensor:
            values, scale = weight.values.t(), weight.scale[None]
            return torch._scaled_mm(x.to(values.dtype), values, ones, scale, out_dtype=torch.bfloat16)

        timed("torch._weight_int8pack_mm", "gate_up", rows, 1, int8pack, eight("gate_up", "int8"))
        timed("torch._scaled_mm, both in fp8", "gate_up", rows, 1, scaled, eight("gate_up", "fp8"))


SUITES = {"eight": table, "eight_matvec": tune_matvec, "eight_matmul": tune_matmul, "eight_peers": peers}
