"""What the interpreter cannot run of the kernels for 8-bit weights: their PTX, number by number, and that they compile.

The kernels are compiled for a small, a middle and a large GPU by the assembler that Triton brings; none is needed.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from lmnb.kernels import rowwise_linear_triton as kernels

# Bytes of shared memory that a program may have, by compute capability.
SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}


def number(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def bits_of(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


def permuted(low: int, high: int, selector: int) -> int:
    every = low.to_bytes(4, "little") + high.to_bytes(4, "little")
    return sum(every[selector >> 4 * i & 7] << 8 * i for i in range(4))


def in_pairs(a: int, b: int, c: int) -> int:
    """a * b + c of two bfloat16 each; all results here are exact."""
    result = 0
    for shift in (0, 16):
        x, y, z = (number((each >> shift & 0xFFFF) << 16) for each in (a, b, c))
        exact = bits_of(x * y + z)
        assert exact & 0xFFFF == 0
        result |= exact >> 16 << shift
    return result


OPERATIONS: dict[str, Any] = {
    "mov.b32": lambda a: a,
    "xor.b32": lambda a, b: a ^ b,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "shr.s32": lambda a, b: (a - (a >> 31 << 32) >> b) & 0xFFFFFFFF,
    "prmt.b32": permuted,
    "lop3.b32": lambda a, b, c, table: {0xEA: a & b | c}[table],
    "sub.f32": lambda a, b: bits_of(number(a) - number(b)),
    "mul.f32": lambda a, b: bits_of(number(a) * number(b)),
    "fma.rn.bf16x2": in_pairs,
}


def run(ptx: str, **registers: int) -> dict[str, int]:
    """The registers after some lines of PTX, 32 bits each."""
    values = {"$" + name.lstrip("_"): value for name, value in registers.items()}
    for line in ptx.splitlines():
        if line in ("{", "}") or line.startswith(".reg"):
            continue
        operation, rest = line.rstrip(";").split(" ", 1)
        target, *operands = (word.strip() for word in rest.split(","))
        known = [int(w.replace("0f", "0x"), 0) if w[0].isdigit() else values[w] for w in operands]
        values[target] = OPERATIONS[operation](*known)
    return values


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_every_byte_becomes_its_number(kind: torch.dtype) -> None:
    numbers = torch.arange(256).to(torch.uint8).view(kind).float().tolist()
    is_float8 = kind is not torch.int8
    floats = (kernels._FLOAT8_FLOATS if is_float8 else kernels._INT8_FLOATS).value
    pairs = (kernels._FLOAT8_PAIRS if is_float8 else kernels._INT8_PAIRS).value
    finite = [byte for byte in range(256) if numbers[byte] == numbers[byte]]  # no weight is NaN
    for i, byte in enumerate(finite):
        first = [byte, finite[i - 7], finite[i - 50], finite[i - 99]]
        second = [finite[i - 3], byte, finite[i - 120], finite[i - 13]]
        low, high = (int.from_bytes(bytes(word), "little") for word in (first, second))
        wide, narrow = run(floats, _4=low), run(pairs, _4=low, _5=high)
        assert [number(wide[f"${j}"]) for j in range(4)] == [numbers[each] for each in first]
        got = [(number((narrow[f"${j}"] & 0xFFFF) << 16), number(narrow[f"${j}"] >> 16 << 16)) for j in range(4)]
        assert got == [(numbers[a], numbers[b]) for a, b in zip(first, second, strict=True)]


def shared_memory(kernel: Any, capability: int, dtype: str, warps: int, stages: int, **constants: Any) -> int:
    """Compile a kernel: bytes of shared memory that one program of it takes."""
    types = {"words": "*i32", "scale": "*fp32", "x": f"*{dtype}", "bias": f"*{dtype}", "out": f"*{dtype}"}
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in constants else types.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in types},
    )
    options = {"num_warps": warps, "num_stages": stages}
    shared: int = compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared
    return shared


@pytest.mark.parametrize(("capability", "is_float8"), [(80, False), (89, True), (90, False)])
def test_kernels_compile_and_fit(capability: int, is_float8: bool) -> None:
    what: dict[str, Any] = {"FLOAT8": is_float8, "RUN": 32}
    vector = {**what, "SIZE": 4096, "WORDS": 1024, "BIAS": True, "HOW": "floats"}
    shared_memory(kernels._matvec, capability, "bf16", 2, 1, BLOCK_R=4, BLOCK_W=256, **vector)
    del vector["BIAS"]
    shared_memory(kernels._unpack, capability, "bf16", 4, 1, BLOCK=1024, **vector)
    tiles = {kernels.tile_shape(rows, outs, torch.bfloat16) for rows in (2, 64, 300) for outs in (4096, 32768)}
    for block_n, block_m, stages, warps in tiles | {kernels.strict_tile(rows, torch.bfloat16) for rows in (1, 300)}:
        shared = shared_memory(
            kernels._matmul, capability, "bf16", warps, stages, BLOCK_N=block_n, BLOCK_M=block_m, EVEN=True,
            SPLIT=False, BIAS=True, HOW="pairs", STAGES=stages, **what,
        )  # fmt: skip
        assert shared <= SHARED[capability]
