"""`quantization="int8"` on a CPU, and what is refused there; `eight_bit_checks.py` has the GPU's side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_support import PagedRunner, random_model, save_model

from lmnb.errors import ArgumentError, UnsupportedModelError
from lmnb.kernels import eight_bit, native
from lmnb.kernels.quantized_linear import quantize_groups
from lmnb.kernels.rowwise_linear import quantize_rows, rows_of_a_piece
from lmnb.runtime.loading import load_model

IDS = [5, 17, 99, 4, 250, 31, 8]
CPU = torch.device("cpu")


def needs_native() -> None:
    if native.prepare() is None:
        pytest.skip(native.why_not())


@pytest.mark.parametrize("model", ["llama", "llama-tied-mha", "llama-bias-gqa", "qwen3"])
def test_logits_are_those_of_the_weights_that_are_meant(model: str, tmp_path: Path) -> None:
    needs_native()
    theirs = save_model(random_model(model), tmp_path)
    kept = load_model(tmp_path, device="cpu", quantization="int8").model
    plain = load_model(tmp_path, device="cpu", dtype="bfloat16").model
    for module in theirs.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(quantize_groups(module.weight.detach()).dequantized())
    with torch.no_grad():
        want = theirs(torch.tensor([IDS])).logits[0].float()
    got, rounded = (PagedRunner(each).step({"a": IDS}) for each in (kept, plain))
    error, usual = (float((logits - want).norm() / want.norm()) for logits in (got, rounded))
    assert error < max(0.03, 1.2 * usual)  # as near as weights in bfloat16 are to the unquantised ones
    assert kept.weight_note == "8-bit weights (int8)"
    assert kept.kv_layout.dtype == torch.bfloat16
    assert kept.weight_bytes < 0.75 * plain.weight_bytes


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(random_model("llama"), tmp_path)
    with pytest.raises(ArgumentError, match="quantization='fp8' cannot be had here: fp8 is for a GPU"):
        load_model(tmp_path, device="cpu", quantization="fp8")
    with pytest.raises(ArgumentError, match="'gguf', 'int8', 'fp8' or 'none', not 'int4'"):
        load_model(tmp_path, device="cpu", quantization="int4")
    with pytest.raises(ArgumentError, match="on a CPU it computes in bfloat16"):
        load_model(tmp_path, device="cpu", dtype="float32", quantization="int8")
    monkeypatch.setattr(native, "_outcome", native._Outcome(None, "there is no C++ compiler (g++) here"))
    with pytest.raises(ArgumentError, match=r"no product for it: there is no C\+\+ compiler"):
        load_model(tmp_path, device="cpu", quantization="int8")
    monkeypatch.setattr(eight_bit, "triton_works", lambda: False)
    why = eight_bit.refusal("int8", torch.bfloat16, torch.device("cuda"))
    assert why == "it needs Triton, and a GPU of compute capability 8.0 or more"


def test_sizes_and_architectures_that_have_no_such_products(tmp_path: Path) -> None:
    needs_native()
    odd, other = tmp_path / "odd", tmp_path / "other"
    save_model(random_model("llama", intermediate_size=100), odd)
    with pytest.raises(UnsupportedModelError, match="odd has layers of 100 inputs, which are no groups of 32"):
        load_model(odd, device="cpu", quantization="int8")
    save_model(random_model("phi"), other)
    with pytest.raises(
        UnsupportedModelError, match="quantization='int8' is for architectures that lmnb runs by itself"
    ):
        load_model(other, device="cpu", quantization="int8")


def test_what_rounding_to_eight_bits_costs() -> None:
    """Of normally distributed weights, much like those of trained models: the figures of the documentation."""
    weight = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))

    def error(rounded: torch.Tensor) -> float:
        return float((rounded - weight).norm() / weight.norm())

    assert 0.007 < error(quantize_rows([weight], "int8", CPU).dequantized()) < 0.010
    assert 0.022 < error(quantize_rows([weight], "fp8", CPU).dequantized()) < 0.028
    assert 0.004 < error(quantize_groups(weight).dequantized()) < 0.006


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_rows_are_rounded_one_by_one(kind: str) -> None:
    weight = (
        torch.randn(5, 40, generator=torch.Generator().manual_seed(1)) * torch.tensor([1e-30, 1, 1e4, 0, 1])[:, None]
    )
    weight[4, 3] = float("inf")
    got = quantize_rows([weight[:2], weight[2:]], kind, CPU)
    assert torch.equal(got.dequantized()[3], torch.zeros(40))
    assert not got.dequantized()[4].isfinite().all()
    for row in range(3):
        off = (got.dequantized()[row] - weight[row]).abs()
        step = (
            weight[row].abs().max() / 127 / 2
            if kind == "int8"
            else weight[row].abs() / 16 + weight[row].abs().max() / 448 / 2**9
        )
        assert bool((off <= 1.001 * step).all())


def test_groups_of_a_cpu_lose_no_more_than_a_file_of_the_same_kind() -> None:
    gguf = pytest.importorskip("gguf")
    weight = torch.randn(24, 96, generator=torch.Generator().manual_seed(2))
    blocks = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q8_0)
    theirs = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))
    ours = quantize_groups(weight)
    assert (ours.dequantized() - weight).norm() <= (theirs - weight).norm() * 1.001
    broken = weight.clone()
    broken[3, 40] = float("nan")
    finite = quantize_groups(broken).dequantized().isfinite()
    assert not finite[3, 32:64].any()
    assert finite.sum() == weight.numel() - 32


@pytest.mark.parametrize(("num_out", "size"), [(28672, 4096), (4096, 14336), (1000, 64), (7, 100_000)])
def test_pieces_fit_their_room_and_cover_the_weight(num_out: int, size: int) -> None:
    room = max(1 << 24, 128 * size)
    step = rows_of_a_piece(num_out, size, room)
    assert step * size <= room
    pieces = [min(step, num_out - start) for start in range(0, num_out, step)]
    assert len(pieces) == -(-num_out // (room // size))
    assert min(pieces) > step / 2 or len(pieces) == 1
