"""The device, the dtype and the kind of weights that a user names, as torch's and as what this machine can do."""

from __future__ import annotations

from pathlib import Path

import torch

from lmnb.errors import ArgumentError
from lmnb.kernels import eight_bit, native
from lmnb.runtime.argument_checks import shown

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(device: str) -> torch.device:
    """The torch device `device` names. Raises ArgumentError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device must be 'auto', 'cpu' or 'cuda', not {shown(device)}") from error
    if found.type not in ("cpu", "cuda"):
        raise ArgumentError(f"device must be 'auto', 'cpu' or 'cuda', not {shown(device)}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(f"there is no device {device!r} here; use device='cpu', or 'auto' for what there is")
    return found


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch dtype `dtype` names. Raises ArgumentError."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" or _cpu_has_bfloat16() else torch.float32
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ArgumentError(f"dtype must be 'auto' or one of {', '.join(_DTYPES)}, not {shown(dtype)}")
    return _DTYPES[dtype]


def resolve_quantization(quantization: str, dtype: str, device: torch.device) -> bool:
    """Whether a GGUF file's integers may be kept where it has some. Raises ArgumentError."""
    if quantization == "auto":
        return dtype == "auto" and device.type == "cpu"
    if quantization not in ("gguf", "none", *eight_bit.KINDS):
        raise ArgumentError(f"quantization must be 'auto', 'gguf', 'int8', 'fp8' or 'none', not {shown(quantization)}")
    if quantization != "gguf":
        return False
    if device.type != "cpu" or dtype not in ("auto", "bfloat16"):
        raise ArgumentError(
            f"quantization='gguf' computes in bfloat16 on a CPU, not in {dtype} on {device.type}; "
            "leave quantization='auto'"
        )
    return True


def _eight_bit(quantization: str, dtype: torch.dtype, device: torch.device) -> eight_bit.EightBitWeights | None:
    """What makes 8-bit weights, if they were asked for. Raises ArgumentError."""
    if quantization not in eight_bit.KINDS:
        return None
    why = eight_bit.refusal(quantization, dtype, device)
    if why is not None:
        raise ArgumentError(f"quantization={quantization!r} cannot be had here: {why}; or leave quantization='auto'")
    return eight_bit.EightBitWeights(quantization, dtype, device)


def why_integers_cost() -> str:
    """Why this CPU computes more slowly with a file's integers, which takes bfloat16, than in float32 with the numbers
    they stand for; "" if it does not. Compiles the kernels if need be."""
    return "" if _cpu_has_bfloat16() or native.prepare() is not None else native.why_not()


def _cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU multiplies bfloat16 itself; elsewhere it is emulated, and slower than float32."""
    try:
        words = set(cpuinfo.read_text("utf-8").split())
    except OSError:
        return False
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})  # x86, x86, Arm
