"""The Triton kernels alone, at Llama-3.1-8B's shapes in bfloat16, in the launch settings worth comparing.

`python -m benchmarks.gpu_kernels [matvec decode wide extend small]`: one line a setting. Rates are of the bytes that
must be read, or of the operations that must be done; every timed call reads memory that is not in the L2 cache.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
import triton
from torch import Tensor

from lmnb.kernels import decode_attention_triton as decode
from lmnb.kernels import extend_attention_triton as extend
from lmnb.kernels import matvec_triton
from lmnb.kernels.device_plan import ITEM_FIELDS, OPEN_END, TILE_FIELDS

HEADS, KV_HEADS, DIM, HIDDEN, INNER, VOCAB = 32, 8, 128, 4096, 14336, 128256
DEVICE = "cuda"


def seconds(call: Callable[[int], object], repeat: int = 15) -> float:
    """Median time of one call; `call(i)` is the i-th."""
    for i in range(3):
        call(i)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeat)]
    for i, (begin, end) in enumerate(events):
        begin.record()
        call(i)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events) / 1e3


def graphed(call: Callable[[int], object], count: int = 12) -> float:
    """Time of one of `count` calls captured in a graph: without launch gaps."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(i)
    return seconds(lambda _: graph.replay(), 7) / count


def tried(label: str, measure: Callable[[], str]) -> None:
    try:
        print(f"{label:58s} {measure()}", flush=True)
    except Exception as error:
        print(f"{label:58s} failed: {str(error)[:80]!r}", flush=True)


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


def pool_and_table(rows: int, length: int, shared: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values, and a table of `rows` requests of `length` tokens, `shared` of them in common."""
    num_slots = rows * (length - shared) + shared + 64
    keys = torch.randn(num_slots, KV_HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    values = torch.randn_like(keys)
    own = torch.arange(rows * (length - shared), dtype=torch.int32, device=DEVICE).view(rows, -1) + shared
    stem = torch.arange(shared, dtype=torch.int32, device=DEVICE).flip(0).expand(rows, -1)
    return keys, values, torch.cat((stem, own), 1).contiguous()


def launch_items(
    items: Tensor, queries: Tensor, pool: tuple[Tensor, Tensor, Tensor], lens: Tensor, out: Tensor, lse: Tensor,
    parts: int, block_m: int, block_n: int, stages: int, warps: int,
) -> None:  # fmt: skip
    keys, values, table = pool
    decode._attend_items[(len(items) * KV_HEADS,)](
        queries, keys, values, table, items, lens, out, lse, DIM**-0.5 * 1.4427, 0.0, queries.stride(0),
        keys.stride(0), table.stride(0), parts, KV_HEADS=KV_HEADS, GROUP=HEADS // KV_HEADS, HEAD_DIM=DIM,
        BLOCK_D=DIM, BLOCK_M=block_m, BLOCK_N=block_n, FIELDS=ITEM_FIELDS, WINDOW=0, SOFTCAP=False, LONG=False,
        STAGES=stages, num_warps=warps,
    )  # fmt: skip


def decode_items(
    rows: int, length: int, shared: int, per_item: int, chunk: int, configs: list[tuple[int, ...]]
) -> None:
    pools = [pool_and_table(rows, length, shared) for _ in range(2)]
    queries = torch.randn(rows, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
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
    read = (rows if not shared else 1) * (shared or length) * KV_HEADS * DIM * 4 / 1e9
    operations = rows * (shared or length) * HEADS * DIM * 4 / 1e12
    for config in configs:

        def measure(config: tuple[int, ...] = config) -> str:
            took = graphed(
                lambda i: launch_items(items, queries, pools[i % 2], lens, out, lse, len(ranges), *config), 6
            )
            return f"{took * 1e6:8.1f} us {read / took:8.0f} GB/s {operations / took:6.0f} TFLOP/s"

        tried(f"{rows}x{length} shared={shared} chunk={chunk} m,n,stages,warps={config}", measure)


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


def extend_tiles(new: int, before: int, configs: list[tuple[int, ...]]) -> None:
    keys, values, table = pool_and_table(1, new + before)
    queries = torch.randn(new, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
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
                STAGES=config[2], num_warps=config[3],
            )  # fmt: skip

        tried(f"extend {new}+{before} m,n,stages,warps={(block_m, block_n, stages, warps)}", lambda c=call: rate(c))
    if before == 0:
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


SUITES = {"matvec": matvec, "decode": narrow, "short": short, "wide": wide, "extend": extends}


def main() -> None:
    began = time.perf_counter()
    for name in sys.argv[1:] or SUITES:
        print(f"-- {name} (at {time.perf_counter() - began:.0f} s), triton {triton.__version__}", flush=True)
        SUITES[name]()


if __name__ == "__main__":
    main()
