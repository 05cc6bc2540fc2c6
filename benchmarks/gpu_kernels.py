"""The Triton kernels alone, at Llama-3.1-8B's shapes in bfloat16, in the launch settings worth comparing.

`python -m benchmarks.gpu_kernels [matvec decode short wide extend strict fp8 eight ...]`: one line a setting. Rates are
of the bytes that must be read, or of the operations that must be done. Timed calls read memory that is not in the L2
cache. `fp8` has keys and values in 8 bits, read by the hardware's conversion and by arithmetic (bytes).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
import triton
from torch import Tensor

from benchmarks import gpu_eight_bit
from benchmarks.gpu_timing import DEVICE, DIM, HEADS, HIDDEN, INNER, KV_HEADS, VOCAB, graphed, seconds, tried
from lmnb.kernels import decode_attention_triton as decode
from lmnb.kernels import extend_attention_triton as extend
from lmnb.kernels import matvec_triton
from lmnb.kernels.device_plan import ITEM_FIELDS, OPEN_END, TILE_FIELDS
from lmnb.kernels.fp8 import FP8, to_fp8
from lmnb.kernels.strict_matmul_triton import strict_matmul


def matvec() -> None:
    for name, num_out, size in (
        ("qkv", 6144, HIDDEN), ("out", HIDDEN, HIDDEN), ("gate_up", 2 * INNER, HIDDEN), ("down", HIDDEN, INNER),
        ("head", VOCAB, HIDDEN),
    ):  # fmt: skip
        copies = max(2, int(3e8) // (num_out * size * 2) + 1)
        weights = [torch.randn(num_out, size, dtype=torch.bfloat16, device=DEVICE) for _ in range(copies)]
        x = torch.randn(1, size, dtype=torch.bfloat16, device=DEVICE)
        gigabytes = num_out * size * 2 / 1e9

        def rate(call: Callable[[int], object], gigabytes: float = gigabytes) -> str:
            took = graphed(call)
            return f"{took * 1e6:8.1f} us {gigabytes / took:8.0f} GB/s"

        def rotate(
            product: Callable[..., Tensor], options: dict[str, int], i: int, x: Tensor = x, w: list[Tensor] = weights
        ) -> Tensor:
            return product(x, w[i % len(w)], **options)

        tried(f"{name} cuBLAS", lambda: rate(partial(rotate, torch.nn.functional.linear, {})))
        for block_r, block_k, warps in product((1, 2, 4, 8), (1024, 2048, 4096), (4, 8)):
            if 4096 <= block_r * block_k <= 16384:
                options = {"block_r": block_r, "block_k": block_k, "warps": warps}
                tried(f"{name} {options}", lambda o=options: rate(partial(rotate, matvec_triton.matvec, o)))


def pool_and_table(
    rows: int, length: int, shared: int = 0, stored: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values, and a table of `rows` requests of `length` tokens, `shared` of them in common. `stored`: what the
    pool is in; torch.uint8 is float8 as bytes."""
    num_slots = rows * (length - shared) + shared + 64
    keys = torch.randn(num_slots, KV_HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    values = torch.randn_like(keys)
    if stored is not torch.bfloat16:
        keys, values = to_fp8(keys).view(stored), to_fp8(values).view(stored)
    own = torch.arange(rows * (length - shared), dtype=torch.int32, device=DEVICE).view(rows, -1) + shared
    stem = torch.arange(shared, dtype=torch.int32, device=DEVICE).flip(0).expand(rows, -1)
    return keys, values, torch.cat((stem, own), 1).contiguous()


def launch_items(
    items: Tensor, queries: Tensor, pool: tuple[Tensor, Tensor, Tensor], lens: Tensor, out: Tensor, lse: Tensor,
    parts: int, block_m: int, block_n: int, stages: int, warps: int, registers: int | None = None,
) -> None:  # fmt: skip
    keys, values, table = pool
    decode._attend_items[(len(items) * KV_HEADS,)](
        queries, keys, values, table, items, lens, out, lse, DIM**-0.5 * 1.4427, 0.0, queries.stride(0),
        keys.stride(0), table.stride(0), parts, KV_HEADS=KV_HEADS, GROUP=HEADS // KV_HEADS, HEAD_DIM=DIM,
        BLOCK_D=DIM, BLOCK_M=block_m, BLOCK_N=block_n, FIELDS=ITEM_FIELDS, WINDOW=0, SOFTCAP=False, LONG=False,
        STAGES=stages, num_warps=warps, maxnreg=registers,
    )  # fmt: skip


def decode_items(
    rows: int,
    length: int,
    shared: int,
    per_item: int,
    chunk: int,
    configs: list[tuple[int, ...]],
    stored: torch.dtype = torch.bfloat16,
) -> None:
    pools = [pool_and_table(rows, length, shared, stored) for _ in range(2)]
    queries = torch.randn(rows, HEADS, DIM, dtype=_queries(stored), device=DEVICE)
    lens = torch.full((rows,), length, dtype=torch.int32, device=DEVICE)
    ranges = [(start, min(start + chunk, shared or length)) for start in range(0, shared or length, chunk)]
    items = torch.tensor(
        [
            [first, per_item, first, start, stop if stop < length else OPEN_END, i]
            for first in range(0, rows, per_item)
            for i, (start, stop) in enumerate(ranges)
        ],
        dtype=torch.int32,
        device=DEVICE,
    )
    out = torch.empty(rows * len(ranges) * HEADS * DIM, dtype=torch.bfloat16, device=DEVICE)
    lse = torch.empty(rows * len(ranges) * HEADS, device=DEVICE)
    read = (rows if not shared else 1) * (shared or length) * KV_HEADS * DIM * 2 * stored.itemsize / 1e9
    operations = rows * (shared or length) * HEADS * DIM * 4 / 1e12
    for config in configs:

        def measure(config: tuple[int, ...] = config) -> str:
            took = graphed(
                lambda i: launch_items(items, queries, pools[i % 2], lens, out, lse, len(ranges), *config), 6
            )
            return f"{took * 1e6:8.1f} us {read / took:8.0f} GB/s {operations / took:6.0f} TFLOP/s"

        tried(f"{_name(stored)}{rows}x{length} shared={shared} chunk={chunk} m,n,stages,warps={config}", measure)


def _queries(stored: torch.dtype) -> torch.dtype:
    """What `rotary_store` leaves them in."""
    return torch.bfloat16 if stored is torch.bfloat16 else torch.float16


def _name(stored: torch.dtype) -> str:
    return {torch.bfloat16: "", FP8: "fp8 ", torch.uint8: "fp8 as bytes "}[stored]


def narrow() -> None:
    configs = [
        (16, n, stages, warps) for n, stages, warps in product((32, 64, 128), (2, 3, 4), (2, 4)) if n * stages <= 256
    ]
    decode_items(256, 1152, 0, 1, 1152, configs)
    decode_items(256, 1152, 0, 1, 576, [(16, 64, 3, 4), (16, 32, 4, 4)])
    decode_items(1, 640, 0, 1, 64, [(16, 64, 1, 4), (16, 32, 2, 4), (16, 64, 3, 4)])


def wide() -> None:
    decode_items(64, 16416, 16384, 32, 2048, [(128, 64, 3, 4), (128, 64, 4, 4)])
    configs = [
        (128, n, stages, warps) for n, stages, warps in product((32, 64, 128), (2, 3), (4, 8)) if n * stages <= 256
    ]
    decode_items(64, 16416, 16384, 32, 1024, configs)
    decode_items(64, 16416, 16384, 16, 1024, [(64, 64, 3, 4), (64, 64, 2, 4), (64, 128, 2, 4)])
    decode_items(512, 2112, 2048, 32, 1024, [(128, 64, 2, 8), (128, 64, 3, 8), (128, 128, 2, 8), (128, 64, 3, 4)])


def extend_tiles(new: int, before: int, configs: list[tuple[int, ...]], stored: torch.dtype = torch.bfloat16) -> None:
    keys, values, table = pool_and_table(1, new + before, stored=stored)
    queries = torch.randn(new, HEADS, DIM, dtype=_queries(stored), device=DEVICE)
    out = torch.empty(new, HEADS * DIM, dtype=torch.bfloat16, device=DEVICE)
    operations = 4 * HEADS * DIM * (new * before + new * (new + 1) / 2) / 1e12

    def rate(call: Callable[[int], object]) -> str:
        took = seconds(call, 7)
        return f"{took * 1e6:8.1f} us {operations / took:6.0f} TFLOP/s"

    for block_m, block_n, stages, warps in configs:
        per_tile = block_m * KV_HEADS // HEADS
        tiles = torch.tensor(
            [[i, min(per_tile, new - i), before + i, 0] for i in range(0, new, per_tile)][::-1],
            dtype=torch.int32,
            device=DEVICE,
        )

        def call(_: int, tiles: Tensor = tiles, config: tuple[int, ...] = (block_m, block_n, stages, warps)) -> None:
            extend._extend_tiles[(len(tiles) * KV_HEADS,)](
                queries, keys, values, table, tiles, out, DIM**-0.5 * 1.4427, 0.0, queries.stride(0), keys.stride(0),
                table.stride(0), KV_HEADS=KV_HEADS, GROUP=HEADS // KV_HEADS, HEAD_DIM=DIM, BLOCK_D=DIM,
                BLOCK_M=config[0], BLOCK_N=config[1], FIELDS=TILE_FIELDS, WINDOW=0, SOFTCAP=False, LONG=False,
                STAGES=config[2], STRICT=False, num_warps=config[3],
            )  # fmt: skip

        label = f"{_name(stored)}extend {new}+{before} m,n,stages,warps={(block_m, block_n, stages, warps)}"
        tried(label, lambda c=call: rate(c))
    if before == 0 and stored is torch.bfloat16:
        k, v = keys[:new].transpose(0, 1)[None], values[:new].transpose(0, 1)[None]
        q = queries.transpose(0, 1)[None]
        for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):

            def peer(_: int, backend: str = backend) -> None:
                with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

            tried(f"extend {new}+0 torch {backend}", lambda c=peer: rate(c))


def extends() -> None:
    configs = [(m, n, s, w) for m, n, s, w in product((64, 128), (64, 128), (2, 3), (4, 8)) if (m, w) != (64, 8)]
    extend_tiles(8192, 0, configs)
    extend_tiles(8192, 8192, [(128, 64, 3, 8), (128, 128, 2, 8), (128, 64, 3, 4)])


def short() -> None:
    configs = [(16, n, stages, warps) for n, stages, warps in product((16, 32, 64), (1, 2, 3), (1, 2, 4))]
    decode_items(512, 80, 0, 1, 128, configs)
    decode_items(64, 96, 0, 1, 128, [(16, 32, 2, 2), (16, 64, 2, 2), (16, 64, 1, 4), (16, 128, 1, 4)])


def strict() -> None:
    """Strict mode's products beside the library's."""
    for rows in (1, 64, 256, 8192):
        for name, num_out, size in (("qkv", 6144, HIDDEN), ("out", HIDDEN, HIDDEN), ("gate_up", 2 * INNER, HIDDEN),
                                    ("down", HIDDEN, INNER), ("head", VOCAB, HIDDEN)):  # fmt: skip
            if rows * num_out > 1 << 30 or (rows == 8192 and name == "head"):
                continue
            count = max(1, min(8, (1 << 30) // (num_out * size)))  # so many that none is in the cache
            weights = [torch.randn(num_out, size, dtype=torch.bfloat16, device=DEVICE) for _ in range(count)]
            x = torch.randn(rows, size, dtype=torch.bfloat16, device=DEVICE)
            ours = graphed(lambda i, w=weights, x=x: strict_matmul(x, w[i % len(w)]))
            theirs = graphed(lambda i, w=weights, x=x: torch.nn.functional.linear(x, w[i % len(w)]))
            rate, gigabytes = 2 * rows * num_out * size / 1e12, 2 * num_out * size / 1e9
            print(f"strict {name:8s} {rows:5d} rows {ours * 1e6:9.1f} us, cuBLAS {theirs * 1e6:9.1f} us; "
                  f"{rate / ours:6.0f} TFLOP/s, {gigabytes / ours:6.0f} GB/s of weights", flush=True)  # fmt: skip


def in_8_bits() -> None:
    """Each kernel in the settings of 16 bits, and in others."""
    few = [(16, 64, 3, 2), (16, 32, 3, 1)]
    more = [(16, 64, 4, 2), (16, 32, 4, 1), (16, 32, 3, 2), (16, 32, 4, 2), (16, 64, 3, 1), (16, 64, 2, 2)]
    capped = [(16, 32, 3, 2, 128), (16, 64, 3, 2, 168)]
    decode_items(256, 1152, 0, 1, 1152, few[:1])
    decode_items(256, 1152, 0, 1, 1152, [*few, *more, *capped], FP8)
    decode_items(256, 1152, 0, 1, 1152, few, torch.uint8)
    decode_items(512, 80, 0, 1, 128, [(16, 16, 2, 1), (16, 16, 3, 1), (16, 32, 2, 2)], FP8)
    shared = [(128, 64, 3, 4), (128, 64, 2, 4), (128, 64, 3, 8)]
    decode_items(64, 16416, 16384, 32, 1024, shared[:1])
    decode_items(64, 16416, 16384, 32, 1024, [*shared, (128, 64, 1, 4), (128, 128, 2, 8)], FP8)
    decode_items(64, 16416, 16384, 32, 1024, shared[:1], torch.uint8)
    extend_tiles(8192, 0, shared, FP8)
    extend_tiles(8192, 8192, shared[:1], FP8)


SUITES = {
    "matvec": matvec, "decode": narrow, "short": short, "wide": wide, "extend": extends, "strict": strict,
    "fp8": in_8_bits, **gpu_eight_bit.SUITES,
}  # fmt: skip


def main() -> None:
    began = time.perf_counter()
    for name in sys.argv[1:] or SUITES:
        print(f"-- {name} (at {time.perf_counter() - began:.0f} s), triton {triton.__version__}", flush=True)
        SUITES[name]()


if __name__ == "__main__":
    main()
