"""The Triton kernels beside float64 references: run by `test_triton_kernels.py`, interpreted or on a GPU.

`LMNB_TEST_DEVICE=cuda` runs them there, at more and larger shapes and in bfloat16 too. Whatever a kernel must not
read (other slots, padding, stale table columns) is NaN or an impossible slot.
"""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch
from torch import Tensor

from lmnb.kernels.decode_attention_triton import decode_attention
from lmnb.kernels.device_plan import ITEM_FIELDS, NARROW_ROWS, OPEN_END, TILE_FIELDS, WIDE_ROWS, DecodePart
from lmnb.kernels.extend_attention_triton import extend_attention
from lmnb.kernels.greedy_triton import greedy
from lmnb.kernels.matvec_triton import matvec
from lmnb.kernels.rms_norm_triton import add_rms_norm_triton, rms_norm_triton
from lmnb.kernels.rotary_store_triton import rotary_angles_triton, rotary_store_triton
from lmnb.kernels.silu_mul_triton import silu_mul_triton
from lmnb.kernels.slot_table_triton import begin_step, copy_rows

DEVICE = torch.device(os.environ.get("LMNB_TEST_DEVICE", "cpu"))
ON_GPU = DEVICE.type == "cuda"
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if ON_GPU else [])]  # the interpreter's bfloat16 is wrong
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def error(got: Tensor, expected: Tensor) -> float:
    """Relative distance; NaN stays NaN and fails every comparison."""
    got, expected = got.double().cpu(), expected.double().cpu()
    assert got.shape == expected.shape
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


def close(got: Tensor, expected: Tensor) -> None:
    assert error(got, expected) < BOUNDS[got.dtype]


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [40, 576, *([4096, 5120] if ON_GPU else [])])
def test_rms_norm(dtype: torch.dtype, size: int) -> None:
    x, residual = randn(5, size, dtype=dtype), randn(5, size, dtype=dtype, seed=1)
    weight = randn(size, dtype=dtype, seed=2)

    def reference(value: Tensor) -> Tensor:
        wide = value.double()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()

    close(rms_norm_triton(x, weight, 1e-5), reference(x))
    normed, total = add_rms_norm_triton(x, residual, weight, 1e-5)
    close(total, x.double() + residual.double())
    close(normed, reference(total))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_heads_in_a_wider_row(dtype: torch.dtype) -> None:
    rows = randn(3, 7, 64, dtype=dtype)
    weight = randn(4, 64, dtype=dtype, seed=1)
    heads = rows[:, :4]
    wide = heads.double()
    expected = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    close(rms_norm_triton(heads, weight, 1e-6), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 3000])
def test_silu_mul(dtype: torch.dtype, size: int) -> None:
    gate_up = randn(3, 2 * size, dtype=dtype)
    gate, up = gate_up.double().chunk(2, -1)
    close(silu_mul_triton(gate_up), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(4, 2, 64), (9, 3, 80), (32, 8, 128)])
def test_rotary_store(dtype: torch.dtype, query_heads: int, kv_heads: int, head_dim: int) -> None:
    num_tokens = 3
    qkv = randn(num_tokens, query_heads + 2 * kv_heads, head_dim, dtype=dtype)
    before = qkv.double()
    positions = torch.tensor([0, 77, 40_000], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([5, 0, 9], dtype=torch.int32, device=DEVICE)
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, head_dim, 2, device=DEVICE).float() / head_dim)
    keys = torch.full((11, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE)
    values = keys.clone()
    cos, sin = rotary_angles_triton(positions, inv_freq, torch.float32)
    angles = (positions.float()[:, None] * inv_freq).double()  # the product itself is taken in float32
    angles = torch.cat((angles, angles), -1)[:, None]
    assert error(cos, angles.cos()) < 1e-5
    heads, new_values = qkv[:, : query_heads + kv_heads], qkv[:, query_heads + kv_heads :]
    queries = rotary_store_triton(heads, new_values, cos, sin, keys, values, slots)
    wide = before[:, : query_heads + kv_heads]
    low, high = wide.chunk(2, -1)
    rotated = wide * angles.cos() + torch.cat((-high, low), -1) * angles.sin()
    close(queries, rotated[:, :query_heads])
    close(keys[slots.long()], rotated[:, query_heads:])
    assert torch.equal(values[slots.long()].double(), before[:, query_heads + kv_heads :])
    untouched = [i for i in range(11) if i not in slots.tolist()]
    assert keys[untouched].isnan().all()
    assert values[untouched].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_out", "size"), [(7, 100), (64, 1024), *([(6144, 4096), (4096, 14336)] if ON_GPU else [])]
)
@pytest.mark.parametrize("biased", [False, True])
def test_matvec(dtype: torch.dtype, num_out: int, size: int, biased: bool) -> None:
    x, weight = randn(1, size, dtype=dtype), randn(num_out, size, dtype=dtype, seed=1)
    bias = randn(num_out, dtype=dtype, seed=2) if biased else None
    expected = x.double() @ weight.double().t() + (bias.double() if bias is not None else 0)
    close(matvec(x, weight, bias), expected)


def test_greedy_takes_the_first_of_equals_and_reports_nan_as_infinite() -> None:
    logits = randn(4, 9000, dtype=torch.float32)
    logits[0, [8000, 4097, 8999]] = 50.0
    logits[1, 8990] = 1e9  # beyond the tokens that count
    logits[2, 17] = float("nan")
    logits[3] = float("-inf")
    last = torch.full((6,), -7, dtype=torch.int32, device=DEVICE)
    rows = torch.tensor([5, 0, 2, 3], dtype=torch.int32, device=DEVICE)
    result = greedy(logits, 8980, last, rows)
    chosen, best = result[0], result[1].view(torch.float32)
    assert (chosen[0], best[0]) == (4097, 50.0)
    assert chosen[1] == logits[1, :8980].argmax()
    assert not torch.isfinite(best[2:]).any()
    first, second, third, fourth = chosen.tolist()
    assert last.tolist() == [second, -7, third, fourth, -7, first]


def test_slot_table_upkeep() -> None:
    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    table = torch.full((4, 2000), -1, dtype=torch.int32, device=DEVICE)
    slots = torch.arange(3000, dtype=torch.int32, device=DEVICE)
    copy_rows(slots, torch.tensor([[2, 5, 1500, 100], [0, 0, 3, 7]], dtype=torch.int32, device=DEVICE), table)
    assert table[2, 5:1505].tolist() == list(range(100, 1600))
    assert table[0, :3].tolist() == [7, 8, 9]
    assert (table >= 0).sum() == 1503
    ids, out = ints(11, -1, 13), ints(0, 0, 0)
    begin_step(ids, ints(3, 0, 1999), ints(70, 80, 90), ints(0, 1, 3), ints(21, 22, 23, 24), table, out)
    assert out.tolist() == [11, 22, 13]
    assert (table[0, 3], table[1, 0], table[3, 1999]) == (70, 80, 90)


class Pool:
    """KV of some requests' tokens at random slots; everything else is NaN, and unused table columns point there."""

    def __init__(self, shared: list[list[int]], kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        # Request i's keys are the tokens `shared[i]`, by a number of their own: equal numbers, one slot.
        tokens = sorted({token for row in shared for token in row})
        num_slots = len(tokens) + 50
        order = torch.randperm(num_slots - 1, generator=torch.Generator().manual_seed(3))[: len(tokens)] + 1
        self.slot = dict(zip(tokens, order.tolist(), strict=True))
        self.keys = torch.full((num_slots, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE)
        self.values = self.keys.clone()
        used = order.to(DEVICE)
        self.keys[used] = randn(len(tokens), kv_heads, head_dim, dtype=dtype, seed=4)
        self.values[used] = randn(len(tokens), kv_heads, head_dim, dtype=dtype, seed=5)
        self.rows = [torch.tensor([self.slot[token] for token in row], device=DEVICE) for row in shared]
        self.table = torch.zeros((len(shared), max(map(len, shared)) + 70), dtype=torch.int32, device=DEVICE)
        for i, row in enumerate(self.rows):
            self.table[i, : len(row)] = row.int()

    def attend(self, query: Tensor, row: int, length: int, window: int | None, softcap: float | None) -> Tensor:
        """Float64 attention of one query [Hq, D] over the first `length` keys of a row."""
        first = 0 if window is None else max(0, length - window)
        slots = self.rows[row][first:length]
        k, v = self.keys[slots].double(), self.values[slots].double()
        group = query.shape[0] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("hd,lhd->hl", query.double(), k) * query.shape[1] ** -0.5
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        return torch.einsum("hl,lhd->hd", scores.softmax(-1), v)


def plan(
    narrow: list[list[int]],
    wide: list[list[int]],
    kv_lens: list[int],
    num_parts: list[int],
    heads: int,
    dim: int,
    dtype: torch.dtype,
) -> DecodePart:
    def table(items: list[list[int]]) -> Tensor:
        return torch.tensor(items, dtype=torch.int32, device=DEVICE).view(-1, ITEM_FIELDS)

    most = max(num_parts)
    places = len(kv_lens) * most * heads
    return DecodePart(
        num_rows=len(kv_lens),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32, device=DEVICE),
        num_parts=torch.tensor(num_parts, dtype=torch.int32, device=DEVICE),
        narrow=table(narrow),
        wide=table(wide),
        partial_out=torch.full((places * dim,), float("nan"), dtype=dtype, device=DEVICE),
        partial_lse=torch.full((places,), float("nan"), device=DEVICE),
        max_parts=most,
    )


HEADS = [(4, 1, 64), (3, 3, 80), *([(32, 8, 128), (16, 1, 256), (12, 4, 96)] if ON_GPU else [])]
LIMITS = [(None, None), (7, None), (None, 5.0)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "limits"), [*product(HEADS, LIMITS[:1]), *product(HEADS[:1], LIMITS[1:])])
def test_decode_attention_over_a_tree(
    dtype: torch.dtype, heads: tuple[int, int, int], limits: tuple[int | None, float | None]
) -> None:
    (num_heads, kv_heads, dim), (window, softcap) = heads, limits
    scale = 20 if ON_GPU else 1
    stem = list(range(90 * scale))
    twig = list(range(10_000, 10_000 + 33 * scale))
    # Requests 0 to 2 share stem and twig, 3 the stem only, 4 nothing; row 5 is padding.
    own = [[20_000 + 5000 * i + j for j in range(n * scale)] for i, n in enumerate((1, 70, 9, 12, 41))]
    contents = [stem + twig + own[0], stem + twig + own[1], stem + twig + own[2], stem + own[3], own[4]]
    pool = Pool(contents, kv_heads, dim, dtype)
    lens = [len(row) for row in contents]
    stem_end, twig_end = len(stem), len(stem) + len(twig)
    half = stem_end // 2 + 3
    wide = [[0, 4, 1, 0, half, 0], [0, 4, 3, half, stem_end, 1]]
    narrow = [[i, 1, i, twig_end, OPEN_END, 3] for i in range(3)] + [[3, 1, 3, stem_end, OPEN_END, 2]]
    narrow += [[4, 1, 4, 0, 16, 0], [4, 1, 4, 16, OPEN_END, 1], [0, 0, 0, 0, 0, 0]]
    few = NARROW_ROWS // (num_heads // kv_heads)
    (narrow if few >= 3 else wide).append([0, 3, 2, stem_end, twig_end, 2])
    queries = randn(6, num_heads, dim, dtype=dtype, seed=6)
    part = plan(narrow, wide, [*lens, 1], [4, 4, 4, 3, 2, 0], num_heads, dim, dtype)
    out = torch.full((6, num_heads * dim), float("nan"), dtype=dtype, device=DEVICE)
    decode_attention(queries, pool.keys, pool.values, pool.table, part, dim**-0.5, out, window=window, softcap=softcap)
    expected = torch.stack([pool.attend(queries[i], i, lens[i], window, softcap) for i in range(5)])
    close(out[:5], expected.view(5, -1))
    assert (out[5] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "limits"), [*product(HEADS, LIMITS[:1]), *product(HEADS[:1], LIMITS[1:])])
@pytest.mark.parametrize("rows_per_tile", [NARROW_ROWS, WIDE_ROWS])
def test_extend_attention(
    dtype: torch.dtype, heads: tuple[int, int, int], limits: tuple[int | None, float | None], rows_per_tile: int
) -> None:
    (num_heads, kv_heads, dim), (window, softcap) = heads, limits
    scale = 10 if ON_GPU else 1
    lengths = [(1, 0), (9 * scale, 0), (5, 70 * scale), (40 * scale, 63), (17, 64)]  # (new tokens, tokens before)
    pool = Pool(
        [[5000 * i + j for j in range(new + before)] for i, (new, before) in enumerate(lengths)], kv_heads, dim, dtype
    )
    per_tile = rows_per_tile // (num_heads // kv_heads)
    tiles: list[list[int]] = []
    where: list[tuple[int, int]] = []
    token = 2  # the first two tokens of the step are somebody else's
    for row, (new, before) in enumerate(lengths):
        tiles += [[token + i, min(per_tile, new - i), before + i, row] for i in range(0, new, per_tile)]
        where += [(row, before + i + 1) for i in range(new)]
        token += new
    queries = randn(token, num_heads, dim, dtype=dtype, seed=7)
    table = torch.tensor(tiles, dtype=torch.int32, device=DEVICE).view(-1, TILE_FIELDS)
    out = torch.full((token, num_heads * dim), float("nan"), dtype=dtype, device=DEVICE)
    extend_attention(
        queries, pool.keys, pool.values, pool.table, table, dim**-0.5, out,
        rows_per_tile=rows_per_tile, window=window, softcap=softcap,
    )  # fmt: skip
    assert out[:2].isnan().all()
    expected = torch.stack([pool.attend(queries[2 + i], *at, window, softcap) for i, at in enumerate(where)])
    close(out[2:], expected.view(len(where), -1))
