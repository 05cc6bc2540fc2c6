"""The Triton kernels beside float64 references: run by `test_triton_kernels.py`, interpreted or on a GPU.

`LMNB_TEST_DEVICE=cuda` runs them there, at more and larger shapes and in bfloat16 too. Whatever a kernel must not
read (other slots, padding, stale table columns) is NaN or an impossible slot.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import device_support
import pytest
import torch
import triton
import triton.language as tl
from device_support import LARGE, ON_GPU
from torch import Tensor

from lmnb.kernels import fp8_triton
from lmnb.kernels.decode_attention_triton import decode_attention
from lmnb.kernels.device_plan import ITEM_FIELDS, NARROW_ROWS, OPEN_END, STRICT_ROWS, TILE_FIELDS, WIDE_ROWS, DecodePart
from lmnb.kernels.extend_attention_triton import extend_attention
from lmnb.kernels.fp8 import FP8, read_rows, store_rows, to_fp8
from lmnb.kernels.greedy_triton import greedy
from lmnb.kernels.log_sums_triton import log_sums_triton
from lmnb.kernels.matvec_triton import matvec
from lmnb.kernels.rms_norm_triton import add_rms_norm_triton, rms_norm_triton
from lmnb.kernels.rotary_store_triton import rotary_angles_triton, rotary_store_triton
from lmnb.kernels.rowwise_linear import MANY_ROWS, RowwiseProduct, RowwiseWeight, packed, quantize_rows
from lmnb.kernels.rowwise_linear_triton import rowwise_matmul, rowwise_matvec, strict_rowwise_matmul, unpack_rows
from lmnb.kernels.silu_mul_triton import silu_mul_triton
from lmnb.kernels.slot_table_triton import begin_step, copy_rows
from lmnb.kernels.strict_matmul_triton import strict_matmul

DEVICE = torch.device(device_support.DEVICE)
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if ON_GPU else [])]  # the interpreter's bfloat16 is wrong
# What a pool is in: 8 bits are read as this device converts them, and as an older one must.
IN_8_BITS = ["8 bits", "8 bits by arithmetic"] if ON_GPU else ["8 bits by arithmetic"]
STORED = ["as computed", *IN_8_BITS]
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
@pytest.mark.parametrize("size", [40, 576, *([4096, 5120] if LARGE else [])])
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


@pytest.fixture(params=STORED)
def stored(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype | None:
    """What a pool is in; None: the queries' dtype."""
    if request.param == "8 bits by arithmetic":
        monkeypatch.setattr(fp8_triton, "_converts_fp8", lambda device: False)
    elif request.param == "8 bits" and not fp8_triton._converts_fp8(DEVICE):
        pytest.skip("this device does not convert float8")
    return None if request.param == "as computed" else FP8


@triton.jit
def _there_and_back(x, narrow, pool, wide, count, FIRST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    value = tl.load(x + i, mask=ok, other=0.0)
    tl.store(narrow + i, fp8_triton.narrowed(value), mask=ok)
    tl.store(wide + i, fp8_triton.widened(tl.load(pool + i, mask=ok, other=0.0), value, FIRST), mask=ok)


@pytest.mark.parametrize("stored", IN_8_BITS, indirect=True)
def test_rounding_to_fp8_is_torchs_but_for_what_is_too_large(stored: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    # Halfway between two neighbours, and next to there.
    codes = torch.arange(0x7F, dtype=torch.uint8).view(FP8).float()
    halves = (codes[1:] + codes[:-1]) / 2
    near = [torch.nextafter(halves, torch.full_like(halves, end)) for end in (0.0, 1000.0)]
    x = torch.cat((every, halves, -halves, *near, torch.tensor([448.0, 464.0, 1e30, float("inf"), -float("inf")])))
    expected = to_fp8(x)
    inside = x.abs() <= 448
    assert torch.equal(expected[inside].view(torch.uint8), x[inside].to(FP8).view(torch.uint8))
    assert (expected[x.abs() > 448].float() == 448 * x[x.abs() > 448].sign()).all()
    narrow = torch.zeros(len(x), dtype=torch.uint8, device=DEVICE)
    for dtype, first in product(DTYPES, (False, True)):
        wide = torch.zeros(len(x), dtype=dtype, device=DEVICE)
        pool = fp8_triton.readable(expected.to(DEVICE))
        grid = (triton.cdiv(len(x), 1024),)
        _there_and_back[grid](x.to(DEVICE), narrow, pool, wide, len(x), FIRST=first, BLOCK=1024)
        is_nan = x.isnan()
        assert narrow.cpu().view(FP8).float()[is_nan].isnan().all()
        assert torch.equal(narrow.cpu()[~is_nan], expected.view(torch.uint8)[~is_nan])
        assert torch.equal(wide.cpu().float().nan_to_num(9e9), expected.float().nan_to_num(9e9))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(4, 2, 64), (9, 3, 80), (32, 8, 128)])
def test_rotary_store(
    dtype: torch.dtype, query_heads: int, kv_heads: int, head_dim: int, stored: torch.dtype | None
) -> None:
    num_tokens = 3
    qkv = randn(num_tokens, query_heads + 2 * kv_heads, head_dim, dtype=dtype)
    before = qkv.double()
    positions = torch.tensor([0, 77, 40_000], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([5, 0, 9], dtype=torch.int32, device=DEVICE)
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, head_dim, 2, device=DEVICE).float() / head_dim)
    keys = torch.full((11, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE).to(stored or dtype)
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
    assert queries.dtype is (torch.float16 if stored is FP8 and dtype is torch.bfloat16 else dtype)
    close(queries, rotated[:, :query_heads])
    new_keys, kept = (read_rows(pool, slots.long(), dtype) for pool in (keys, values))
    if stored is None:
        close(new_keys, rotated[:, query_heads:])
        assert torch.equal(kept.double(), before[:, query_heads + kv_heads :])
    else:
        # A key next to the middle of two numbers may go either way.
        exact = to_fp8(rotated[:, query_heads:].to(dtype))
        assert (new_keys.double() != exact.double()).float().mean() < 0.01
        assert error(new_keys, rotated[:, query_heads:]) < 0.04
        assert torch.equal(kept.double(), to_fp8(before[:, query_heads + kv_heads :]).double())
    untouched = torch.tensor([i for i in range(11) if i not in slots.tolist()], device=DEVICE)
    assert read_rows(keys, untouched, dtype).isnan().all()
    assert read_rows(values, untouched, dtype).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "size"), [(7, 100), (64, 1024), *([(6144, 4096), (4096, 14336)] if LARGE else [])])
@pytest.mark.parametrize("biased", [False, True])
def test_matvec(dtype: torch.dtype, num_out: int, size: int, biased: bool) -> None:
    x, weight = randn(1, size, dtype=dtype), randn(num_out, size, dtype=dtype, seed=1)
    bias = randn(num_out, dtype=dtype, seed=2) if biased else None
    expected = x.double() @ weight.double().t() + (bias.double() if bias is not None else 0)
    close(matvec(x, weight, bias), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_out", "size"), [(70, 100), (33, 64), *([(6144, 4096), (4096, 14336), (1000, 576)] if LARGE else [])]
)
@pytest.mark.parametrize("biased", [False, True])
def test_strict_products_of_a_row_are_its_own(dtype: torch.dtype, num_out: int, size: int, biased: bool) -> None:
    many = 700 if LARGE else 70
    x, weight = randn(many, size, dtype=dtype), randn(num_out, size, dtype=dtype, seed=1)
    bias = randn(num_out, dtype=dtype, seed=2) if biased else None
    whole = strict_matmul(x, weight, bias)
    close(whole, x.double() @ weight.double().t() + (bias.double() if bias is not None else 0))
    for start, stop in ((0, 1), (many - 1, many), (3, 20), (1, 65), (5, many)):
        assert torch.equal(strict_matmul(x[start:stop], weight, bias), whole[start:stop])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 7, 40])
def test_strict_tiles_of_a_token_are_its_own(dtype: torch.dtype, window: int | None) -> None:
    num_heads, kv_heads, dim = (32, 8, 128) if LARGE else (4, 1, 64)
    length = 900 if LARGE else 90
    pool = Pool([list(range(length))], kv_heads, dim, dtype, dtype)
    queries = randn(length, num_heads, dim, dtype=dtype, seed=8)

    def attend(tiles: list[list[int]]) -> Tensor:
        out = torch.full((length, num_heads * dim), float("nan"), dtype=dtype, device=DEVICE)
        table = torch.tensor(tiles, dtype=torch.int32, device=DEVICE)
        extend_attention(
            queries, pool.keys, pool.values, pool.table, table, dim**-0.5, out, rows_per_tile=STRICT_ROWS, window=window
        )
        return out

    some = list(range(0, length, 1 if LARGE else 4))
    alone = attend([[i, 1, i, 0] for i in some])[some]
    assert alone.isfinite().all()
    per_tile = STRICT_ROWS * kv_heads // num_heads
    for first in (per_tile, 1, 5):
        starts = [0, *range(first, length, per_tile)]
        tiles = [[a, b - a, a, 0] for a, b in zip(starts, [*starts[1:], length], strict=True)]
        together = attend(tiles)
        assert together.isfinite().all()
        assert torch.equal(together[some], alone)


def eight_bit_case(kind: str, num_out: int, size: int, rows: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """x, a weight in 8 bits, a bias, and the float64 product with the weight that the 8 bits stand for."""
    x, bias = randn(rows, size, dtype=dtype), randn(num_out, dtype=dtype, seed=2)
    weight = quantize_rows([randn(num_out, size, dtype=torch.float32, seed=1)], kind, DEVICE)
    return x, weight, bias, x.double() @ (weight.values.double() * weight.scale.double()[:, None]).t()


EIGHT_BIT_SHAPES = [(7, 100), (80, 1024), *([(6144, 4096), (4096, 14336)] if LARGE else [])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "size"), EIGHT_BIT_SHAPES)
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_eight_bit_matvec(dtype: torch.dtype, num_out: int, size: int, kind: str) -> None:
    x, weight, bias, expected = eight_bit_case(kind, num_out, size, 1, dtype)
    close(rowwise_matvec(x, packed(weight)), expected)
    close(rowwise_matvec(x, packed(weight), bias), expected + bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "size"), EIGHT_BIT_SHAPES)
@pytest.mark.parametrize("rows", [2, 17, *([16, 33, 64, 100, 256, 300] if LARGE else [])])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_eight_bit_matmul(dtype: torch.dtype, num_out: int, size: int, rows: int, kind: str) -> None:
    x, weight, bias, expected = eight_bit_case(kind, num_out, size, rows, dtype)
    close(rowwise_matmul(x, packed(weight)), expected)
    for splits in (1, 3):
        got = rowwise_matmul(x, packed(weight), bias, splits=splits)
        close(got, expected + bias.double())
        assert torch.equal(got, rowwise_matmul(x, packed(weight), bias, splits=splits))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_every_eight_bit_number_is_widened_exactly(dtype: torch.dtype, kind: str) -> None:
    every = torch.arange(256, device=DEVICE).to(torch.uint8)
    every = every.view(torch.int8) if kind == "int8" else every.view(torch.float8_e4m3fn)
    every = torch.where(every.float().isfinite(), every.float(), 0.0).to(every.dtype).view(4, 64)
    weight = packed(RowwiseWeight(every, torch.ones(4, device=DEVICE)))
    out = torch.full((4, 64), float("nan"), dtype=dtype, device=DEVICE)
    unpack_rows(weight, 0, out)
    assert torch.equal(out.float(), every.float())
    one_hot = torch.eye(64, dtype=dtype, device=DEVICE)
    assert torch.equal(rowwise_matmul(one_hot, weight).float(), every.float().t())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "size"), [(70, 100), *([(6144, 4096), (4096, 14336)] if LARGE else [])])
def test_strict_eight_bit_products_of_a_row_are_its_own(dtype: torch.dtype, num_out: int, size: int) -> None:
    many = 700 if LARGE else 70
    x, natural, bias, expected = eight_bit_case("int8", num_out, size, many, dtype)
    weight = packed(natural)
    whole = strict_rowwise_matmul(x, weight, bias)
    close(whole, expected + bias.double())
    for start, stop in ((0, 1), (many - 1, many), (3, 20), (1, 65), (5, many)):
        assert torch.equal(strict_rowwise_matmul(x[start:stop], weight, bias), whole[start:stop])


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_eight_bit_products_of_many_rows_by_pieces(kind: str) -> None:
    x, weight, bias, expected = eight_bit_case(kind, 300, 64, MANY_ROWS, torch.float32)
    product = RowwiseProduct(weight, torch.full((64 * 130,), float("nan"), device=DEVICE))
    assert product.num_bytes == 300 * 128 + 300 * 4  # inputs are filled up to a group
    close(product(x), expected)
    close(product(x, bias), expected + bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [70, 4500, *([50_257, 128_256] if LARGE else [])])
def test_log_sums(width: int, dtype: torch.dtype) -> None:
    logits = randn(5, width, dtype=dtype) * 4
    logits[1, 3] = -torch.inf
    num_tokens, words = width - 3, -(-width // 128) * 4
    generator = torch.Generator().manual_seed(1)
    masks = torch.randint(-(2**31), 2**31, (3, words), generator=generator).int().to(DEVICE)
    masks[2] = 0
    masks[2, 1] = 1 << 7
    sources, numbers = torch.tensor([[4, 0], [0, 2], [2, 1], [1, 0]], device=DEVICE).unbind(1)
    got = log_sums_triton(logits, sources, None, None, 0)
    rows = logits[sources].double()
    assert torch.equal(got[:, 0].double(), rows.amax(1))
    close(got.sum(1), rows.logsumexp(1))
    of_masks = log_sums_triton(logits, sources, masks, numbers, num_tokens)
    allowed = ((masks[numbers][:, :, None] >> torch.arange(32, device=DEVICE)) & 1).bool().flatten(1)[:, :num_tokens]
    rows = rows[:, :num_tokens].masked_fill(~allowed, -torch.inf)
    assert torch.equal(of_masks[:, 0].double(), rows.amax(1))
    close(of_masks.sum(1), rows.logsumexp(1))
    for i in range(len(sources)):
        one = slice(i, i + 1)
        assert torch.equal(log_sums_triton(logits, sources[one], None, None, 0), got[one])
        assert torch.equal(log_sums_triton(logits, sources[one], masks, numbers[one], num_tokens), of_masks[one])


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


def beside(stored: torch.dtype | None, queries: Tensor) -> Tensor:
    """Queries as `rotary_store` leaves them beside a pool."""
    return queries.half() if stored is FP8 and queries.dtype is torch.bfloat16 else queries


class Pool:
    """KV of some requests' tokens at random slots; everything else is NaN, and unused table columns point there."""

    def __init__(
        self, shared: list[list[int]], kv_heads: int, head_dim: int, dtype: torch.dtype, stored: torch.dtype | None
    ) -> None:
        # Request i's keys are the tokens `shared[i]`, by a number of their own: equal numbers, one slot.
        tokens = sorted({token for row in shared for token in row})
        num_slots = len(tokens) + 50
        order = torch.randperm(num_slots - 1, generator=torch.Generator().manual_seed(3))[: len(tokens)] + 1
        self.slot = dict(zip(tokens, order.tolist(), strict=True))
        nothing = torch.full((num_slots, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE)
        self.keys, self.values = nothing.to(stored or dtype), nothing.to(stored or dtype)
        used = order.to(DEVICE)
        store_rows(self.keys, used, randn(len(tokens), kv_heads, head_dim, dtype=dtype, seed=4))
        store_rows(self.values, used, randn(len(tokens), kv_heads, head_dim, dtype=dtype, seed=5))
        self.rows = [torch.tensor([self.slot[token] for token in row], device=DEVICE) for row in shared]
        self.table = torch.zeros((len(shared), max(map(len, shared)) + 70), dtype=torch.int32, device=DEVICE)
        for i, row in enumerate(self.rows):
            self.table[i, : len(row)] = row.int()

    def attend(self, query: Tensor, row: int, length: int, window: int | None, softcap: float | None) -> Tensor:
        """Float64 attention of one query [Hq, D] over the first `length` keys of a row."""
        first = 0 if window is None else max(0, length - window)
        slots = self.rows[row][first:length]
        k, v = (read_rows(pool, slots, query.dtype).double() for pool in (self.keys, self.values))
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
CASES = [
    *product(HEADS, LIMITS[:1], ["as computed"]),
    *product(HEADS[:1], LIMITS[1:], ["as computed"]),
    *product(HEADS[:1], LIMITS[1:2], IN_8_BITS),
    *product(HEADS[2:3] if ON_GPU else HEADS[1:], LIMITS[:1], IN_8_BITS),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "limits", "stored"), CASES, indirect=["stored"])
def test_decode_attention_over_a_tree(
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    limits: tuple[int | None, float | None],
    stored: torch.dtype | None,
) -> None:
    (num_heads, kv_heads, dim), (window, softcap) = heads, limits
    scale = 20 if LARGE else 1
    stem = list(range(90 * scale))
    twig = list(range(10_000, 10_000 + 33 * scale))
    # Requests 0 to 2 share stem and twig, 3 the stem only, 4 nothing; row 5 is padding.
    own = [[20_000 + 5000 * i + j for j in range(n * scale)] for i, n in enumerate((1, 70, 9, 12, 41))]
    contents = [stem + twig + own[0], stem + twig + own[1], stem + twig + own[2], stem + own[3], own[4]]
    pool = Pool(contents, kv_heads, dim, dtype, stored)
    lens = [len(row) for row in contents]
    stem_end, twig_end = len(stem), len(stem) + len(twig)
    half = stem_end // 2 + 3
    wide = [[0, 4, 1, 0, half, 0], [0, 4, 3, half, stem_end, 1]]
    narrow = [[i, 1, i, twig_end, OPEN_END, 3] for i in range(3)] + [[3, 1, 3, stem_end, OPEN_END, 2]]
    narrow += [[4, 1, 4, 0, 16, 0], [4, 1, 4, 16, OPEN_END, 1], [0, 0, 0, 0, 0, 0]]
    few = NARROW_ROWS // (num_heads // kv_heads)
    (narrow if few >= 3 else wide).append([0, 3, 2, stem_end, twig_end, 2])
    queries = beside(stored, randn(6, num_heads, dim, dtype=dtype, seed=6))
    part = plan(narrow, wide, [*lens, 1], [4, 4, 4, 3, 2, 0], num_heads, dim, dtype)
    out = torch.full((6, num_heads * dim), float("nan"), dtype=dtype, device=DEVICE)
    decode_attention(queries, pool.keys, pool.values, pool.table, part, dim**-0.5, out, window=window, softcap=softcap)
    expected = torch.stack([pool.attend(queries[i], i, lens[i], window, softcap) for i in range(5)])
    close(out[:5], expected.view(5, -1))
    assert (out[5] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "limits", "stored"), CASES, indirect=["stored"])
@pytest.mark.parametrize("rows_per_tile", [NARROW_ROWS, STRICT_ROWS, WIDE_ROWS])
def test_extend_attention(
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    limits: tuple[int | None, float | None],
    rows_per_tile: int,
    stored: torch.dtype | None,
) -> None:
    (num_heads, kv_heads, dim), (window, softcap) = heads, limits
    scale = 10 if LARGE else 1
    lengths = [(1, 0), (9 * scale, 0), (5, 70 * scale), (40 * scale, 63), (17, 64)]  # (new tokens, tokens before)
    contents = [[5000 * i + j for j in range(new + before)] for i, (new, before) in enumerate(lengths)]
    pool = Pool(contents, kv_heads, dim, dtype, stored)
    per_tile = rows_per_tile // (num_heads // kv_heads)
    tiles: list[list[int]] = []
    where: list[tuple[int, int]] = []
    token = 2  # the first two tokens of the step are somebody else's
    for row, (new, before) in enumerate(lengths):
        tiles += [[token + i, min(per_tile, new - i), before + i, row] for i in range(0, new, per_tile)]
        where += [(row, before + i + 1) for i in range(new)]
        token += new
    queries = beside(stored, randn(token, num_heads, dim, dtype=dtype, seed=7))
    table = torch.tensor(tiles, dtype=torch.int32, device=DEVICE).view(-1, TILE_FIELDS)
    out = torch.full((token, num_heads * dim), float("nan"), dtype=dtype, device=DEVICE)
    extend_attention(
        queries, pool.keys, pool.values, pool.table, table, dim**-0.5, out,
        rows_per_tile=rows_per_tile, window=window, softcap=softcap,
    )  # fmt: skip
    assert out[:2].isnan().all()
    assert not out[2:].isnan().any()
    expected = torch.stack([pool.attend(queries[2 + i], *at, window, softcap) for i, at in enumerate(where)])
    close(out[2:], expected.view(len(where), -1))


def test_queries_in_float16_keep_to_its_range_and_to_nan() -> None:
    if not ON_GPU:
        pytest.skip("the interpreter's bfloat16 is wrong")
    heads = torch.zeros(1, 3, 64, dtype=torch.bfloat16, device=DEVICE)
    heads[0, :2, :3] = torch.tensor([1e6, -1e6, float("nan")], device=DEVICE)
    pools = [torch.zeros(2, 1, 64, device=DEVICE).to(FP8) for _ in range(2)]
    still = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    cos, sin = rotary_angles_triton(still, torch.ones(32, device=DEVICE), torch.float32)
    queries = rotary_store_triton(heads[:, :3], heads[:, 2:], cos, sin, *pools, still)
    assert queries[0, :, :2].tolist() == [[65504.0, -65504.0]] * 2
    assert queries[0, :, 2].isnan().all()
    assert (queries[0, :, 3:32] == 0).all()
