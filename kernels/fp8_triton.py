# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""float8 e4m3 in Triton: rounding to it by arithmetic on bits, and reading it by the hardware's own conversion where
there is one (compute capability 8.9 and later), elsewhere by arithmetic too. Both read the same numbers.

A kernel is told by its pointer: bytes (`uint8`) are to be converted by arithmetic.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmnb.kernels.dispatch import INTERPRETED
from lmnb.kernels.fp8 import as_bytes


def readable(pool: Tensor) -> Tensor:
    """`pool` as the kernels that read it take it: in 8 bits as float8 where the device converts it, else as bytes."""
    return pool if _converts_fp8(pool.device) else as_bytes(pool)


@functools.cache
def _converts_fp8(device: torch.device) -> bool:
    # Triton's interpreter has float8, but does not round as the hardware does.
    return not INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


_INTERPRETED = tl.constexpr(INTERPRETED)
# Four float8 in a register ($2) to float16, in PTX. What is not pure the compiler leaves where it is.
_CONVERTED = tl.constexpr("""{
    .reg .b16 low, high;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}""")
_PAIR = """
    prmt.b32 x, $2, 0, SELECTOR;
    and.b32 sign, x, 0x80008000;
    and.b32 x, x, 0x7f007f00;
    shr.b32 x, x, 1;
    add.u32 nan, x, 0x40804080;
    and.b32 nan, nan, 0x80008000;
    shr.b32 quiet, nan, 6;
    sub.u32 nan, nan, quiet;
    or.b32 x, x, sign;
    mul.f16x2 x, x, scale;
    or.b32 OUT, x, nan;
"""
_TWO_HALVES = tl.constexpr(
    "{\n.reg .b32 x, sign, nan, quiet, scale;\nmov.b32 scale, 0x5c005c00;"
    + _PAIR.replace("SELECTOR", "0x1404").replace("OUT", "$0")
    + _PAIR.replace("SELECTOR", "0x3424").replace("OUT", "$1")
    + "}"
)


@triton.jit
def as_halves(x):
    """`x` as float16 in the place of bfloat16: values beyond its range become its ends, NaN stays NaN."""
    x = x.to(tl.float32)
    x = tl.where(x > 65504.0, 65504.0, tl.where(x < -65504.0, -65504.0, x))
    return x.to(tl.float16).to(tl.bfloat16, bitcast=True)


@triton.jit
def widened(x, like, FIRST: tl.constexpr):
    """What was read from a pool, in the type of `like`: exact for float8.

    FIRST: convert before anything else. The compiler would rather spread 8 bits over the threads as a product wants
    them; for values, which are multiplied along the other dimension than they lie in, that is a load for each byte.
    """
    if x.dtype == tl.uint8 and _INTERPRETED:
        bits = x.to(tl.int16)
        # The fields of a float16 whose exponent is 8 too small; its subnormal numbers are float8's.
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
        x = tl.where((bits & 0x7F) == 0x7F, float("nan"), half)
    elif x.dtype == tl.uint8:  # the same, two at a time
        x = tl.inline_asm_elementwise(_TWO_HALVES, "=r,=r,r", [x], dtype=tl.float16, is_pure=not FIRST, pack=4)
    elif x.dtype == tl.float8e4nv and FIRST:
        bits = x.to(tl.uint8, bitcast=True)
        x = tl.inline_asm_elementwise(_CONVERTED, "=r,=r,r", [bits], dtype=tl.float16, is_pure=False, pack=4)
    return x.to(like.dtype)


@triton.jit
def narrowed(x):
    """The bytes of `x` as float8: rounded to nearest, ties to even; beyond its range, its ends; NaN stays NaN."""
    wide = x.to(tl.float32)
    bits = wide.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.minimum(tl.abs(wide), 448.0)
    # Below 1/64 all numbers are multiples of 1/512, and so are float32's from 2**14 on: the sum rounds.
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    bits = size.to(tl.int32, bitcast=True)
    large = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    found = tl.where(size < 0.015625, small, large)
    found = tl.where(wide != wide, 0x7F, found)
    return (found | sign).to(tl.uint8)
