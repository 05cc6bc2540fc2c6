"""The kernels in C++ for a CPU: compiled once for this machine into the cache folder, if it has a compiler.

Nothing needs them: where there is no compiler, or the CPU is of another kind, torch's own operators run.
They share torch's OpenMP threads (the calling thread's team), and are called through ctypes with plain addresses: no
header of torch is compiled, so that a build takes seconds and fits any torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmnb.env import cache_dir

_FOLDER = Path(__file__).resolve().parent
_HEADERS = (
    "native.h",
    "amx.h",
    "lanes.h",
    "lanes_avx512.h",
    "lanes_avx512_bf16.h",
    "lanes_avx512_fma.h",
    "lanes_avx2.h",
)
_SOURCES = (
    "paged_attention.cpp",
    "quantized_linear.cpp",
    "rms_norm.cpp",
    "rotary_store.cpp",
    "silu_mul.cpp",
    "decoder_layers.cpp",
    "masked_scores.cpp",
)
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-w")
_CPU_FLAGS = {"avx2", "fma", "f16c"}  # what `lanes.h` needs at the least; every CPU with AVX-512 has them too
_UNIT_FLAGS = {"amx_tile", "amx_bf16"}
_WHY_NO_UNIT = (  # by `State` of `amx.h`
    "which the compiler does not know (g++ does from 11 on)",
    "which this system does not allow",
    "which does not multiply here as it should",
    "",
)
_BUILD_SECONDS = 120.0
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS: dict[str, list[Any]] = {
    "decoder_layers": [_POINTER] * 12 + [_INT] * 9 + [ctypes.c_double] * 2,
    "forbid_masked": [_POINTER] * 2 + [_INT] * 4,
    "likeliest": [_POINTER] * 4 + [_INT] * 4,
    "matrix_unit": [_POINTER, _INT],
    "paged_attention": [_POINTER] * 7 + [_INT] * 6 + [ctypes.c_double],
    "quantized_linear": [_POINTER] * 4 + [_INT] * 5,
    "rms_norm": [_POINTER] * 5 + [_INT] * 5 + [ctypes.c_double],
    "rotary_store": [_POINTER] * 8 + [_INT] * 6,
    "silu_mul": [_POINTER] * 2 + [_INT] * 2,
}
# Shorter calls keep the interpreter's lock: another thread that took it would keep it for milliseconds.
_ROWS_TO_LET_OTHERS_RUN = 8


class NativeKernels:
    """The compiled functions by name; each takes what its C++ source says, and returns nothing."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or AttributeError if `path` cannot be used."""
        _share_openmp()
        self._short = _functions(ctypes.PyDLL(str(path)))
        self._long = _functions(ctypes.CDLL(str(path)))

    def call(self, name: str, rows: int, *arguments: int | float | None) -> None:
        """Call a function for a step of `rows` tokens."""
        (self._short if rows <= _ROWS_TO_LET_OTHERS_RUN else self._long)[name](*arguments)

    def why_no_matrix_unit(self) -> str:
        """Why products and attention are not those of a matrix unit (Intel's AMX); "" if they are."""
        return self._matrix_unit(leave=False)

    def leave_matrix_unit(self) -> None:
        """Go on with lanes alone. Whoever calls it knows that nothing is being computed."""
        self._matrix_unit(leave=True)

    def _matrix_unit(self, *, leave: bool) -> str:
        state = ctypes.c_int64()
        self._short["matrix_unit"](ctypes.addressof(state), leave)
        return _WHY_NO_UNIT[state.value]

    def call_freely(self, name: str, *arguments: int | float | None) -> None:
        """Call a function that is long whatever it is called for: the interpreter is free meanwhile."""
        self._long[name](*arguments)


@dataclass(frozen=True)
class _Outcome:
    kernels: NativeKernels | None
    why_not: str


_lock = threading.Lock()
_outcome: _Outcome | None = None


def prepare() -> NativeKernels | None:
    """Load the kernels, compiled if need be (some seconds, once a machine); None if that is not possible."""
    global _outcome
    with _lock:
        if _outcome is None:
            _outcome = _prepare()
        return _outcome.kernels


def why_not() -> str:
    """Why there are no native kernels; "" if there are, or nobody has asked for them yet."""
    return "" if _outcome is None else _outcome.why_not


def unused_unit() -> str:
    """That kernels do not use the matrix unit which this CPU has, and why; "" if they do, if it has none, or without
    kernels."""
    kernels = prepared_kernels()
    why = "" if kernels is None or not _cpu_flags() >= _UNIT_FLAGS else kernels.why_no_matrix_unit()
    return f"without AMX, {why}" if why else ""


def prepared_kernels() -> NativeKernels | None:
    """The kernels, if they were prepared."""
    return None if _outcome is None else _outcome.kernels


def native_kernels(x: Tensor) -> NativeKernels | None:
    """The kernels, if they were prepared and take tensors like `x`."""
    return None if x.dtype is not torch.bfloat16 or x.is_cuda else prepared_kernels()


def _prepare() -> _Outcome:
    if _CPU_FLAGS - _cpu_flags():
        return _Outcome(None, "this CPU has no AVX2 with FMA and F16C")
    found = os.environ.get("CXX", "").strip() or shutil.which("g++") or shutil.which("c++")
    if not found:
        return _Outcome(None, "there is no C++ compiler (g++) here")
    try:
        # CXX may bring options, or be run by another program ("ccache g++").
        compiler = [found] if shutil.which(found) else shlex.split(found)
        return _Outcome(NativeKernels(_built(compiler)), "")
    except subprocess.TimeoutExpired:
        return _Outcome(None, f"{found} did not end")
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        why = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "without a word")
        return _Outcome(None, f"{found} refused the kernels ({why[:200]})")
    except (OSError, AttributeError, ValueError) as error:
        return _Outcome(None, f"the kernels cannot be built or loaded ({error})")


def _built(compiler: Sequence[str]) -> Path:
    """The library for this source, compiler and CPU, made if it is not there."""
    version = _run(*compiler, "--version")
    sources = [(_FOLDER / name).read_text("utf-8") for name in (*_HEADERS, *_SOURCES)]
    parts = (*sources, *_FLAGS, *compiler, version, " ".join(sorted(_cpu_flags())))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = cache_dir() / "kernels"
    for made in folder.glob(f"native-{key}-*.so"):
        if made.stat().st_size == int(made.stem.rpartition("-")[2]):
            return made
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".native-", dir=folder) as work:
        everything, compiled, linked = (Path(work) / f"kernels.{ending}" for ending in ("cpp", "o", "so"))
        everything.write_text("".join(f'#include "{_FOLDER / name}"\n' for name in _SOURCES), "utf-8")
        _run(*compiler, *_FLAGS, "-c", str(everything), "-o", str(compiled))
        # Without -fopenmp here: the library must use the threads that torch has, not bring its own.
        _run(*compiler, "-shared", str(compiled), "-o", str(linked))
        # The name tells the size: a part of a library, left by a machine that lost its power, would end the process.
        final = folder / f"native-{key}-{linked.stat().st_size}.so"
        os.replace(linked, final)
    return final


def _run(*command: str) -> str:
    """What it prints. CalledProcessError if it fails; TimeoutExpired if it takes too long: it has ended then, with all
    that it has started."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, told = process.communicate(timeout=_BUILD_SECONDS)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, told)
    return out


def _share_openmp() -> None:
    """Let the library see torch's OpenMP, which was loaded for torch alone."""
    maps = Path("/proc/self/maps").read_text("utf-8", errors="replace").splitlines()
    for path in {line.split()[-1] for line in maps if "omp" in line.rpartition("/")[2]}:
        with contextlib.suppress(OSError):
            ctypes.CDLL(path, os.RTLD_GLOBAL | os.RTLD_NOLOAD)


def _functions(library: ctypes.CDLL) -> dict[str, Any]:
    found = {}
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, f"lmnb_{name}")
        function.argtypes, function.restype = arguments, None
        found[name] = function
    return found


def _cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text("utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))
