# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Products with 8-bit weights in Triton: one row (bound by memory), some rows (tensor cores), and unpacking for many.

Weights lie in words of four numbers, as `rowwise_linear.packed` puts them: byte j of a group's words is a run of
inputs, so that planes of bytes multiply runs of x. The weight is the left operand of a product, whose numbers are
widened in the registers in which they arrive; rows of x, of which there are fewer, are the columns. float8 is taken
apart by its bits: no GPU needs to know the format.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels.dispatch import INTERPRETED
from lmnb.kernels.rowwise_linear import PackedRows

_MANY_OUTPUTS = 16384
# How numbers are widened; the interpreter knows no instructions of a GPU.
_FLOATS, _PAIRS = ("plain", "plain") if INTERPRETED else ("floats", "pairs")


def _asm(constants: str, byte: str) -> tl.constexpr:
    """PTX that does `byte` for each byte j of its words; `constants` come before."""
    selectors = ({"four": 0x7440 + j, "top": 0x0444 + j * 0x1000, "both": 0x4400 + j * 0x1111} for j in range(4))
    each = "".join(byte.format(j=j, **selector) for j, selector in enumerate(selectors))
    return tl.constexpr(f"{{\n.reg .b32 v, w, a, b;\n{constants}{each}}}")


# To float32, a word at a time. int8: a byte becomes 2 ** 23 + 128 + its number; a conversion would be slower.
_INT8_FLOATS = _asm(
    "mov.b32 a, 0x4B000000;\nxor.b32 w, $4, 0x80808080;\n",
    "prmt.b32 v, w, a, {four};\nsub.f32 ${j}, v, 0f4B000080;\n",
)
# float8: the bits move to where float32 has its own; 2 ** 120 makes up for the other bias of the exponent.
_FLOAT8_FLOATS = _asm(
    "", "prmt.b32 v, $4, 0, {top};\nshr.s32 v, v, 4;\nand.b32 v, v, 0x87F00000;\nmul.f32 ${j}, v, 0f7B800000;\n"
)
# To bfloat16, two words at a time. int8: the low seven bits become 128 + bits, the sign -128 or -256; both are exact.
_INT8_PAIRS = _asm(
    "mov.b32 a, 0x3F803F80;\n",  # 1
    """prmt.b32 v, $4, $5, {both};
lop3.b32 w, v, 0x00800080, 0xC300C300, 0xEA;
lop3.b32 v, v, 0x007F007F, 0x43004300, 0xEA;
fma.rn.bf16x2 ${j}, v, a, w;
""",
)
_FLOAT8_PAIRS = _asm(
    "mov.b32 a, 0x7B807B80;\nmov.b32 b, 0x80008000;\n",  # 2 ** 120, -0
    """prmt.b32 v, $4, $5, {both};
shr.u32 w, v, 4;
and.b32 w, w, 0x07F007F0;
lop3.b32 v, v, 0x80008000, w, 0xEA;
fma.rn.bf16x2 ${j}, v, a, b;
""",
)


@triton.jit
def _plane(words, J: tl.constexpr, FLOAT8: tl.constexpr):
    """Byte J of each word (uint32) as the number that it is, float32: what the instructions above do."""
    if FLOAT8:
        top = words << (24 - 8 * J)
        bits = (top & 0x80000000) | ((top >> 4) & 0x07F00000)
        return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
    biased = ((words ^ 0x80808080) >> (8 * J)) & 0xFF
    return (biased | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0  # 2 ** 23 + 128


@triton.jit
def _widened(words, FLOAT8: tl.constexpr, HOW: tl.constexpr):
    """The four planes of words (int32), exactly. HOW: "plain" or "floats" to float32, "pairs" to bfloat16."""
    if HOW == "pairs":
        pairs: tl.constexpr = _FLOAT8_PAIRS if FLOAT8 else _INT8_PAIRS
        return tl.inline_asm_elementwise(
            pairs, "=r,=r,=r,=r,r,r", [words], dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True,
            pack=2,
        )  # fmt: skip
    elif HOW == "floats":  # the compiler looks at one branch only where the others are elses
        floats: tl.constexpr = _FLOAT8_FLOATS if FLOAT8 else _INT8_FLOATS
        return tl.inline_asm_elementwise(
            floats, "=r,=r,=r,=r,r", [words], dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        bits = words.to(tl.uint32, bitcast=True)
        return _plane(bits, 0, FLOAT8), _plane(bits, 1, FLOAT8), _plane(bits, 2, FLOAT8), _plane(bits, 3, FLOAT8)


@triton.jit
def _run_of(x, columns, SIZE: tl.constexpr, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(x + columns).to(tl.float32)
    return tl.load(x + columns, mask=columns < SIZE, other=0.0).to(tl.float32)


@triton.jit
def _matvec(
    x, words, scale, bias, out, num_out, SIZE: tl.constexpr, WORDS: tl.constexpr, RUN: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr, BIAS: tl.constexpr, FLOAT8: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    row_ok = rows < num_out
    acc = tl.zeros([BLOCK_R, BLOCK_W], tl.float32)
    at = words + rows.to(tl.int64)[:, None] * WORDS
    even: tl.constexpr = SIZE % (4 * BLOCK_W) == 0
    for start in tl.static_range(0, WORDS, BLOCK_W):
        place = start + tl.arange(0, BLOCK_W)
        ok = row_ok[:, None] if WORDS % BLOCK_W == 0 else row_ok[:, None] & (place < WORDS)[None, :]
        w = tl.load(at + place[None, :], mask=ok, other=0, eviction_policy="evict_first")
        w0, w1, w2, w3 = _widened(w, FLOAT8, HOW)
        first = place // RUN * (4 * RUN) + place % RUN
        acc += w0.to(tl.float32) * _run_of(x, first, SIZE, even)[None, :]
        acc += w1.to(tl.float32) * _run_of(x, first + RUN, SIZE, even)[None, :]
        acc += w2.to(tl.float32) * _run_of(x, first + 2 * RUN, SIZE, even)[None, :]
        acc += w3.to(tl.float32) * _run_of(x, first + 3 * RUN, SIZE, even)[None, :]
    total = tl.sum(acc, 1) * tl.load(scale + rows, mask=row_ok, other=0.0)
    if BIAS:
        total += tl.load(bias + rows, mask=row_ok, other=0.0).to(tl.float32)
    tl.store(out + rows, total.to(out.dtype.element_ty), mask=row_ok)


# Few variants to compile: of what changes with the batch, nothing decides how memory is read.
@triton.jit(do_not_specialize=["num_rows", "num_groups", "per_split", "row_tiles"])
def _matmul(
    x, words, scale, bias, out, num_rows, num_out, size, num_groups, per_split, row_tiles, RUN: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, EVEN: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr,
    FLOAT8: tl.constexpr, HOW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A tile of BLOCK_N outputs for BLOCK_M rows of x, over `per_split` groups of inputs. SPLIT: `out` takes float32
    sums [splits, rows, outputs] that `_sum_splits` finishes."""
    tile = tl.program_id(0)
    split = tl.program_id(1)
    # Tiles of the same weights run side by side: the weights are read once.
    outs = (tile // row_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = (tile % row_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    run = tl.arange(0, RUN)
    # Beyond the ends the last one is computed again, and not stored: no load needs a mask.
    some_outs = tl.minimum(outs, num_out - 1)
    some_rows = tl.minimum(rows, num_rows - 1)
    word_at = words + some_outs.to(tl.int64)[:, None] * (num_groups * RUN) + run[None, :]
    x_at = x + some_rows.to(tl.int64)[None, :] * size + run[:, None]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for group in tl.range(split * per_split, tl.minimum((split + 1) * per_split, num_groups), num_stages=STAGES):
        w = tl.load(word_at + group * RUN)
        first = group * (4 * RUN)
        if EVEN:
            v0 = tl.load(x_at + first)
            v1 = tl.load(x_at + first + RUN)
            v2 = tl.load(x_at + first + 2 * RUN)
            v3 = tl.load(x_at + first + 3 * RUN)
        else:
            left = size - first - run[:, None]
            v0 = tl.load(x_at + first, mask=left > 0, other=0.0)
            v1 = tl.load(x_at + first + RUN, mask=left > RUN, other=0.0)
            v2 = tl.load(x_at + first + 2 * RUN, mask=left > 2 * RUN, other=0.0)
            v3 = tl.load(x_at + first + 3 * RUN, mask=left > 3 * RUN, other=0.0)
        w0, w1, w2, w3 = _widened(w, FLOAT8, HOW)
        acc = tl.dot(w0.to(v0.dtype), v0, acc, input_precision="ieee")
        acc = tl.dot(w1.to(v0.dtype), v1, acc, input_precision="ieee")
        acc = tl.dot(w2.to(v0.dtype), v2, acc, input_precision="ieee")
        acc = tl.dot(w3.to(v0.dtype), v3, acc, input_precision="ieee")
    ok = (rows < num_rows)[:, None] & (outs < num_out)[None, :]
    result = tl.trans(acc)
    place = (split * num_rows + rows).to(tl.int64)[:, None] * num_out + outs[None, :]
    if not SPLIT:
        result *= tl.load(scale + some_outs)[None, :]
        if BIAS:
            result += tl.load(bias + some_outs).to(tl.float32)[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["num_rows"])
def _sum_splits(
    sums, scale, bias, out, num_rows, num_out, SPLITS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr
):
    row = tl.program_id(1)
    outs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = outs < num_out
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):  # one after the other: the same sum every time
        total += tl.load(sums + (split * num_rows + row).to(tl.int64) * num_out + outs, mask=ok, other=0.0)
    total *= tl.load(scale + outs, mask=ok, other=0.0)
    if BIAS:
        total += tl.load(bias + outs, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * num_out + outs, total.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _unpack(
    words, scale, out, SIZE: tl.constexpr, WORDS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
    FLOAT8: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(scale + row)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    w0, w1, w2, w3 = _widened(tl.load(words + row * WORDS + place, mask=place < WORDS, other=0), FLOAT8, HOW)
    first = place // RUN * (4 * RUN) + place % RUN
    at = out + row * SIZE + first
    tl.store(at, (w0.to(tl.float32) * factor).to(out.dtype.element_ty), mask=first < SIZE)
    tl.store(at + RUN, (w1.to(tl.float32) * factor).to(out.dtype.element_ty), mask=first + RUN < SIZE)
    tl.store(at + 2 * RUN, (w2.to(tl.float32) * factor).to(out.dtype.element_ty), mask=first + 2 * RUN < SIZE)
    tl.store(at + 3 * RUN, (w3.to(tl.float32) * factor).to(out.dtype.element_ty), mask=first + 3 * RUN < SIZE)


def rowwise_matvec(
    x: Tensor, weight: PackedRows, bias: Tensor | None = None, *, block_r: int = 4, block_w: int = 256, warps: int = 2
) -> Tensor:
    """x [1, in] times `weight`, plus bias [out] if there is one: [1, out]."""
    num_out, num_words = weight.words.shape
    out = x.new_empty(1, num_out)
    _matvec[(triton.cdiv(num_out, block_r),)](
        x, weight.words, weight.scale, bias if bias is not None else x, out, num_out, SIZE=weight.size,
        WORDS=num_words, RUN=weight.run, BLOCK_R=block_r, BLOCK_W=min(block_w, triton.next_power_of_2(num_words)),
        BIAS=bias is not None, FLOAT8=weight.is_float8, HOW=_FLOATS, num_warps=warps,
    )  # fmt: skip
    return out


def tile_shape(num_rows: int, num_out: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Outputs and rows of a tile, stages and warps."""
    block_m = min(64, max(16, triton.next_power_of_2(num_rows)))
    if dtype is torch.float32:
        return 64, block_m, 2, 4
    if num_out < _MANY_OUTPUTS:
        return (64, 128, 3, 4) if num_rows > 64 else (64, block_m, 4, 4)
    if block_m <= 32:
        return 128, block_m, 4, 4
    return 128, 64, 4 if num_rows > 64 else 3, 8


def num_splits(tiles: int, groups: int, processors: int) -> int:
    """How many programs share the inputs of a tile, so that there are enough programs; each has some groups to do."""
    return max(1, min(2 * processors // tiles, groups // 4, 16))


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def rowwise_matmul(
    x: Tensor, weight: PackedRows, bias: Tensor | None = None, *, tile: tuple[int, int, int, int] | None = None,
    splits: int | None = None,
) -> Tensor:  # fmt: skip
    """x [T, in] (contiguous) times `weight`, plus bias [out] if there is one: [T, out]."""
    num_rows, num_out, groups = len(x), len(weight.words), weight.words.shape[1] // weight.run
    block_n, block_m, stages, warps = tile or tile_shape(num_rows, num_out, x.dtype)
    row_tiles = triton.cdiv(num_rows, block_m)
    tiles = row_tiles * triton.cdiv(num_out, block_n)
    per_split = triton.cdiv(groups, splits or num_splits(tiles, groups, _processors(x.device)))
    splits = triton.cdiv(groups, per_split)
    out = x.new_empty(num_rows, num_out)
    sums = x.new_empty(splits, num_rows, num_out, dtype=torch.float32) if splits > 1 else out
    some_bias = bias if bias is not None else x
    _matmul[(tiles, splits)](
        x, weight.words, weight.scale, some_bias, sums, num_rows, num_out, weight.size, groups, per_split, row_tiles,
        RUN=weight.run, BLOCK_N=block_n, BLOCK_M=block_m, EVEN=weight.size % (4 * weight.run) == 0, SPLIT=splits > 1,
        BIAS=bias is not None and splits == 1, FLOAT8=weight.is_float8,
        HOW=_PAIRS if x.dtype is torch.bfloat16 else _FLOATS, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    if splits > 1:
        block = min(256, triton.next_power_of_2(num_out))
        _sum_splits[(triton.cdiv(num_out, block), num_rows)](
            sums, weight.scale, some_bias, out, num_rows, num_out, SPLITS=splits, BLOCK=block, BIAS=bias is not None
        )
    return out


def strict_rowwise_matmul(x: Tensor, weight: PackedRows, bias: Tensor | None = None) -> Tensor:
    """The same, where a row's bits do not depend on the others: each element is one sum, in order, by one program."""
    return rowwise_matmul(x, weight, bias, tile=strict_tile(len(x), x.dtype), splits=1)


def strict_tile(num_rows: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """As `tile_shape`: few rows and many have tiles that share the order of their sums."""
    if dtype is torch.float32:
        return 32, 32, 2, 4
    return (64, 64, 4, 4) if num_rows <= 64 else (128, 128, 3, 8)


def unpack_rows(weight: PackedRows, start: int, out: Tensor) -> None:
    """Rows [start, start + len(out)) of the weight itself into `out` [rows, in], in its dtype."""
    rows, num_words = len(out), weight.words.shape[1]
    block = min(1024, triton.next_power_of_2(num_words))
    _unpack[(rows, triton.cdiv(num_words, block))](
        weight.words[start:], weight.scale[start:], out, SIZE=weight.size, WORDS=num_words, RUN=weight.run, BLOCK=block,
        FLOAT8=weight.is_float8, HOW=_FLOATS,
    )  # fmt: skip
