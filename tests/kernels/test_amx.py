"""The kernels by the matrix unit: by the real one where there is one, else by `software_amx.h`, bit for bit the same.

The library is compiled for it in a process of its own, which goes through the tests of products and attention again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmnb.kernels import native

_FOLDER = Path(__file__).parent
_FLAGS = {"avx512bw", "avx512vl", "avx512_bf16"}
_COMPARE = """
import sys, torch
from lmnb.kernels import native
from lmnb.kernels.quantized_linear import NativeProduct, random_quantized

kernels = native.prepare()
if kernels is None: sys.exit(native.why_not())
assert not kernels.why_no_matrix_unit()
generator = torch.Generator().manual_seed(3)
for bits in (4, 8):
    for outs, ins in ((64, 64), (80, 288), (33, 1536)):
        multiply = NativeProduct(random_quantized(outs, ins, bits))
        for spread in (0, 8, 40):  # numbers of all sizes, those below the smallest normal one too
            x = torch.randn(37, ins, generator=generator)
            x = (x * torch.exp2(spread * torch.randn(37, ins, generator=generator))).bfloat16()
            together = multiply(x, wide=True).view(torch.int32)
            for rows in (1, 2, 3, 15, 16, 17, 32):
                some = multiply(x[:rows], wide=True).view(torch.int32)
                assert torch.equal(some, together[:rows]), (bits, spread, rows)
print("the same")
"""
_TRY = """
import torch
from lmnb.kernels import native
from lmnb.kernels.quantized_linear import NativeProduct, pack_quantized, random_quantized

kernels = native.prepare()
before = kernels.why_no_matrix_unit()
made = [isinstance(pack_quantized(random_quantized(64, 64, bits)), NativeProduct) for bits in (4, 8)]
print([before, all(made), kernels.why_no_matrix_unit()])
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What makes a process compile the kernels for the unit."""
    compiler = shutil.which("g++")
    if compiler is None or not native._cpu_flags() >= _FLAGS:
        pytest.skip("not g++ on a CPU with AVX-512 and BF16")
    folder = tmp_path_factory.mktemp("cache")
    kernels = native.prepare()
    has_unit = kernels is not None and not kernels.why_no_matrix_unit()
    unit = None if has_unit else _FOLDER / "software_amx.h"
    return compiled_with(shlex.quote(compiler), unit, folder)


def compiled_with(compiler: str, unit: Path | None, folder: Path) -> dict[str, str]:
    define = "" if unit is None else " " + shlex.quote(f'-DLMNB_AMX="{unit}"')
    return {**os.environ, "CXX": compiler + define, "LMNB_CACHE": str(folder)}


def run(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_few_rows_have_the_bits_of_many(environment: dict[str, str]) -> None:
    """Lanes, which take one row or two, sum in the unit's order."""
    assert run(environment, "-c", _COMPARE).strip() == "the same"


def test_a_unit_that_is_right_is_used(environment: dict[str, str]) -> None:
    assert run(environment, "-c", _TRY).strip() == "['', True, '']"


def test_a_unit_that_sums_in_another_order_is_left(environment: dict[str, str], tmp_path: Path) -> None:
    """Lanes go on alone; they would not give a row the bits that it has among many."""
    code = (_FOLDER / "software_amx.h").read_text("utf-8")
    one_sum = code.replace("number(b, 2 * n + 1), odd)", "number(b, 2 * n + 1), even)").replace(
        "odd = flushed", "even = flushed"
    )
    assert one_sum.count("even = flushed") == 2
    other = tmp_path / "one_sum.h"
    other.write_text(one_sum, "utf-8")
    compiler = shlex.split(environment["CXX"])[0]
    told = run(compiled_with(shlex.quote(compiler), other, tmp_path), "-c", _TRY)
    assert told.strip() == "['', True, 'which does not multiply here as it should']"


@pytest.mark.parametrize("tests", ["test_quantized_linear.py", "test_paged_attention.py"])
def test_what_holds_without_it_holds(tests: str, environment: dict[str, str]) -> None:
    told = run(environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(_FOLDER / tests))
    assert "passed" in told  # and were not all skipped
