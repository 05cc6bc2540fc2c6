"""Products with stored integers against float64, on ragged shapes; alike to the last bit in any company."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from lmnb.kernels import native, quantized_linear
from lmnb.kernels.quantized_linear import (
    NativeProduct,
    QuantizedProduct,
    QuantizedWeight,
    TorchProduct,
    concatenated,
    pack_quantized,
    random_quantized,
)
from lmnb.runtime.gguf_integers import stored_integers

CASES: list[tuple[type[NativeProduct] | type[TorchProduct], int]] = [
    (NativeProduct, 4),
    (NativeProduct, 8),
    (TorchProduct, 4),
]


@pytest.fixture(params=CASES, ids=["native-4", "native-8", "torch-4"])
def product(request: pytest.FixtureRequest) -> tuple[Callable[[QuantizedWeight], QuantizedProduct], int]:
    kind, bits = request.param
    if kind is NativeProduct and native.prepare() is None:
        pytest.skip(native.why_not())
    return kind, bits


def random_rows(rows: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def relative_error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 21])
@pytest.mark.parametrize(("outs", "ins"), [(64, 64), (80, 288), (16, 32)])
def test_products(product: tuple[Callable[..., QuantizedProduct], int], outs: int, ins: int, rows: int) -> None:
    kind, bits = product
    weight = random_quantized(outs, ins, bits)
    x, bias = random_rows(rows, ins), random_rows(1, outs, seed=1)[0]
    want = x.double() @ weight.dequantized().double().t()
    multiply = kind(weight)
    wide = multiply(x, wide=True)
    assert wide.dtype == torch.float32
    # The compiled kernel rounds nothing but its float32 sums; torch's rounds scales and results to bfloat16.
    assert relative_error(wide, want) < (2e-6 if kind is NativeProduct else 6e-3)
    got = multiply(x, bias)
    assert got.dtype == torch.bfloat16
    assert got.shape == (rows, outs)
    assert relative_error(got, want + bias.double()) < 6e-3


@pytest.mark.parametrize("outs", [1, 15, 33, 70])
@pytest.mark.parametrize("bits", [4, 8])
def test_outputs_that_fill_no_block(outs: int, bits: int) -> None:
    if native.prepare() is None:
        pytest.skip(native.why_not())
    weight, x = random_quantized(outs, 96, bits), random_rows(5, 96)
    got = NativeProduct(weight)(x, wide=True)
    assert relative_error(got, x.double() @ weight.dequantized().double().t()) < 2e-6


def test_a_row_is_the_same_in_any_company(product: tuple[Callable[..., QuantizedProduct], int]) -> None:
    kind, bits = product
    weight, x = random_quantized(208, 160, bits), random_rows(70, 160)
    multiply = kind(weight)
    together = multiply(x)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64):
        assert torch.equal(multiply(x[:rows]), together[:rows])
        assert torch.equal(multiply(x[-rows:]), together[-rows:])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(multiply(x), together)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bits", [4, 8])
def test_what_a_thread_does_with_tiny_numbers_changes_nothing(bits: int) -> None:
    """torch sets it for the calling thread alone: a row's bits would tell who computed it."""
    if native.prepare() is None:
        pytest.skip(native.why_not())
    weight, x = random_quantized(80, 288, bits), random_rows(40, 288) * 2.0**-125
    multiply = NativeProduct(weight)
    want = multiply(x, wide=True)
    assert torch.set_flush_denormal(True)
    try:
        got = multiply(x, wide=True)
        alone = torch.cat([multiply(row[None], wide=True) for row in x])
        tiny = torch.full((1000,), 1e-40) * 0.5
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(got.view(torch.int32), want.view(torch.int32))
    assert torch.equal(alone.view(torch.int32), want.view(torch.int32))
    assert not tiny.any()  # the caller's own is as it was


def test_rows_of_another_size_or_type_are_no_inputs() -> None:
    if native.prepare() is None:
        pytest.skip(native.why_not())
    multiply = NativeProduct(random_quantized(32, 64, 4))
    for x in (random_rows(2, 32), random_rows(2, 64).float(), random_rows(2, 64)[None], random_rows(1, 64)[0]):
        with pytest.raises(AssertionError):
            multiply(x)


def test_strided_rows(product: tuple[Callable[..., QuantizedProduct], int]) -> None:
    kind, bits = product
    weight, x = random_quantized(32, 64, bits), random_rows(6, 128)[::2, :64]
    assert torch.equal(kind(weight)(x), kind(weight)(x.contiguous()))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_are_read_as_their_own_library_reads_them(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((24, 96)).astype(np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    want = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]))
    weight = stored_integers(blocks, kind)
    assert weight is not None
    assert weight.bits == (8 if kind == "Q8_0" else 4)
    assert weight.shape == (24, 96)
    # d * (q - 8) and d * q - 8 d differ in float32's last bits.
    torch.testing.assert_close(weight.dequantized(), want, rtol=0, atol=3e-7 * float(want.abs().max()))


def test_other_kinds_and_vectors_are_not_kept() -> None:
    data = np.zeros((2, 144), dtype=np.uint8)
    assert stored_integers(data, "Q4_K") is None
    assert stored_integers(data[0], "Q4_0") is None
    assert stored_integers(np.zeros((2, 8), dtype=np.float32), "F32") is None  # type: ignore[arg-type]


def test_a_minimum_beyond_float16_is_not_kept() -> None:
    block = np.zeros((1, 18), dtype=np.uint8)
    block[0, :2] = np.array([30000.0], dtype=np.float16).view(np.uint8)
    assert stored_integers(block, "Q4_0") is None


def test_one_after_the_other() -> None:
    parts = [random_quantized(16, 64, 4, seed=seed) for seed in range(3)]
    whole = concatenated(parts)
    assert whole is not None
    assert torch.equal(whole.dequantized(), torch.cat([part.dequantized() for part in parts]))
    assert concatenated([parts[0], random_quantized(16, 64, 8)]) is None


def test_a_product_that_is_wrong_here_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise RuntimeError("not on this CPU")

    monkeypatch.setattr(quantized_linear, "native_kernels", lambda _: None)
    weight = random_quantized(64, 64, 4)
    quantized_linear._agrees.cache_clear()
    try:
        assert isinstance(pack_quantized(weight), TorchProduct)
        assert pack_quantized(random_quantized(64, 64, 8)) is None
        quantized_linear._agrees.cache_clear()
        monkeypatch.setattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu", refuse)
        assert pack_quantized(weight) is None
        quantized_linear._agrees.cache_clear()
        monkeypatch.setattr(
            torch.ops.aten, "_weight_int4pack_mm_for_cpu", lambda x, *_: torch.zeros(len(x), 64).bfloat16()
        )
        assert pack_quantized(weight) is None
    finally:
        quantized_linear._agrees.cache_clear()


@pytest.mark.parametrize("outs", [16, 48, 64, 112, 240])
@pytest.mark.parametrize("bits", [4, 8])
def test_columns_of_any_number_of_blocks(outs: int, bits: int) -> None:
    """One row and several, by any number of threads, and the last columns of one, two or three blocks."""
    if native.prepare() is None:
        pytest.skip(native.why_not())
    weight, x = random_quantized(outs, 64, bits), random_rows(11, 64)
    multiply = NativeProduct(weight)
    want = x.double() @ weight.dequantized().double().t()
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3, 5):
            torch.set_num_threads(number)
            got = multiply(x, wide=True)
            assert relative_error(got, want) < 2e-6
            assert torch.equal(torch.cat([multiply(row[None], wide=True) for row in x]), got)
    finally:
        torch.set_num_threads(threads)
