"""From what a user names (nothing, a folder, a GGUF file, a hub id) to a model and its tokenizer in memory."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lmnb.errors import ArgumentError, ModelNotFoundError, UnsupportedModelError
from lmnb.kernels import native
from lmnb.runtime.apart import apart
from lmnb.runtime.argument_checks import shown
from lmnb.runtime.batch import Model
from lmnb.runtime.decoder_config import DecoderConfig, NotFusedError, parse_config
from lmnb.runtime.dummy_weights import DummyCheckpoint
from lmnb.runtime.embedded import EMBEDDED_NAME, MODEL_NAME, embedded_gguf
from lmnb.runtime.hf_tokenizer import load_tokenizer
from lmnb.runtime.llama import LlamaModel
from lmnb.runtime.model_cache import converted_folder
from lmnb.runtime.model_files import read_object
from lmnb.runtime.stored_integers import StoredIntegers
from lmnb.runtime.tokenizer import Tokenizer
from lmnb.runtime.weights import Checkpoint

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]
_HUB_TIMEOUT_SECONDS = 5.0  # to find out that there is no network; downloads themselves may take as long as they need


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for an engine."""

    model: Model
    tokenizer: Tokenizer


def load_model(
    source: str | Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quantization: str = "auto",
    load_format: str = "auto",
) -> LoadedModel:
    """Load a model.

    `source`: None or "smollm2" for the embedded one; a transformers folder; a GGUF file; or a hub id such as
    "Qwen/Qwen3-0.6B". `dtype`: "auto" is bfloat16 where the hardware computes in it, else float32.
    `device`: "auto" is "cuda" if there is one, else "cpu". `quantization`: "gguf" computes with the 4- and 8-bit
    integers of a GGUF file as they are (on a CPU, in bfloat16), "none" with the weights they stand for; "auto" is
    "gguf" where `dtype` is "auto", there are such integers, and the CPU computes in bfloat16. `load_format`: "dummy"
    makes weights up, for measurements: a folder then needs no more than its config.json and its tokenizer.
    Raises ModelNotFoundError, UnsupportedModelError and ArgumentError. An interrupt ends the wait; what was begun (a
    conversion, say) is finished, and then dropped.

    The work is done in a thread that ends with it. OpenMP keeps a team of threads for each thread that has computed,
    and once there are more of them than processors, they sleep between two calls instead of waiting awake. With a
    team left behind here, the engine's own would decode at half the speed (measured on 2 cores).
    """
    return apart(partial(_load, source, dtype, device, quantization, load_format), "lmnb-load")


def _load(source: str | Path | None, dtype: str, device: str, quantization: str, load_format: str) -> LoadedModel:
    if load_format not in ("auto", "dummy"):
        raise ArgumentError(f"load_format must be 'auto' or 'dummy', not {load_format!r}")
    torch_device = resolve_device(device)
    keeps_integers = resolve_quantization(quantization, dtype, torch_device)
    torch_dtype = resolve_dtype("bfloat16" if quantization == "gguf" else dtype, torch_device)
    preparing = _prepare_kernels(torch_dtype, torch_device)
    folder, name = resolve_source(source)
    config = read_object(folder / "config.json")
    if config is None:
        raise ModelNotFoundError(f"{folder} holds no config.json: it is not a transformers model folder")
    generation = read_object(folder / "generation_config.json") or {}
    tokenizer = load_tokenizer(folder, _eos_ids(config, name) | _eos_ids(generation, name), name)
    integers = StoredIntegers(folder) if keeps_integers else None
    if quantization == "gguf" and not integers:
        raise ArgumentError(
            f"{name} holds no 4- or 8-bit integers that lmnb computes with (Q4_0, Q4_1 or Q8_0 of a GGUF file); "
            "leave quantization='auto'"
        )
    preparing.join()
    try:
        decoder = _decoder_config(config, name)
    except NotFusedError:
        if load_format == "dummy":
            raise UnsupportedModelError(
                f"{name}: load_format='dummy' makes weights up for architectures that lmnb runs by itself, not for "
                "this one; load its own weights"
            ) from None
        from lmnb.runtime.transformers_model import TransformersModel

        return LoadedModel(TransformersModel(name, folder, config, torch_dtype, torch_device), tokenizer)
    if load_format == "dummy":
        weights = DummyCheckpoint(torch_dtype, torch_device)
        return LoadedModel(LlamaModel(name, decoder, weights, torch_dtype, torch_device), tokenizer)
    with Checkpoint(folder) as checkpoint:
        model = LlamaModel(name, decoder, checkpoint, torch_dtype, torch_device, integers)
    if quantization == "gguf" and model.weight_bits >= 16:
        raise ArgumentError(
            f"this machine has no product for {name}'s integers: {native.why_not()}, and torch {torch.__version__} "
            "has none of its own for them; leave quantization='auto'"
        )
    return LoadedModel(model, tokenizer)


def resolve_source(source: str | Path | None) -> tuple[Path, str]:
    """The transformers folder that `source` means (converted or fetched if need be), and the model's name."""
    if source is None or source == EMBEDDED_NAME:
        return _from_gguf(embedded_gguf()), MODEL_NAME
    if not isinstance(source, str | os.PathLike):
        raise ArgumentError(f"a model is named by text or a path, not by {source!r}")
    text = os.fspath(source)
    # Not by the path's own methods, which fail for names that no file system takes.
    path = Path(os.path.expanduser(text))
    if text and os.path.isdir(path):  # "" would be the current folder
        return path, path.resolve().name
    if os.path.isfile(path):
        if path.suffix.lower() != ".gguf":
            raise ModelNotFoundError(f"{path} is a file; lmnb loads a transformers folder or a .gguf file")
        return _from_gguf(path), path.stem
    if isinstance(source, str) and path.suffix.lower() != ".gguf" and _HUB_ID.fullmatch(text):
        return _from_hub(text), text.partition("/")[2]
    raise ModelNotFoundError(
        f"{shown(text)} is no folder, no .gguf file and no hub id such as 'Qwen/Qwen3-0.6B'; "
        f"check the path (here: {Path.cwd()}), or use {EMBEDDED_NAME!r} for the embedded model"
    )


def resolve_device(device: str) -> torch.device:
    """The torch device `device` names. Raises ArgumentError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device must be 'auto', 'cpu' or 'cuda', not {device!r}") from error
    if found.type not in ("cpu", "cuda"):
        raise ArgumentError(f"device must be 'auto', 'cpu' or 'cuda', not {device!r}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(f"there is no device {device!r} here; use device='cpu', or 'auto' for what there is")
    return found


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch dtype `dtype` names. Raises ArgumentError."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" or _cpu_has_bfloat16() else torch.float32
    if dtype not in _DTYPES:
        raise ArgumentError(f"dtype must be 'auto' or one of {', '.join(_DTYPES)}, not {dtype!r}")
    return _DTYPES[dtype]


def resolve_quantization(quantization: str, dtype: str, device: torch.device) -> bool:
    """Whether a GGUF file's integers are to be kept where it has some. Raises ArgumentError."""
    if quantization == "auto":
        return dtype == "auto" and device.type == "cpu" and _cpu_has_bfloat16()
    if quantization not in ("gguf", "none"):
        raise ArgumentError(f"quantization must be 'auto', 'gguf' or 'none', not {quantization!r}")
    if quantization == "none":
        return False
    if device.type != "cpu" or dtype not in ("auto", "bfloat16"):
        raise ArgumentError(
            f"quantization='gguf' computes in bfloat16 on a CPU, not in {dtype} on {device.type}; "
            "leave quantization='auto'"
        )
    return True


def _prepare_kernels(dtype: torch.dtype, device: torch.device) -> threading.Thread:
    """Compile, or find, a CPU's own kernels while the rest is loaded."""
    wanted = device.type == "cpu" and dtype is torch.bfloat16
    thread = threading.Thread(target=native.prepare if wanted else lambda: None, name="lmnb-kernels", daemon=True)
    thread.start()
    return thread


def _cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU multiplies bfloat16 itself; elsewhere it is emulated, and slower than float32."""
    try:
        words = set(cpuinfo.read_text("utf-8").split())
    except OSError:
        return False
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})  # x86, x86, Arm


def _from_gguf(path: Path) -> Path:
    from lmnb.runtime.gguf_convert import CONVERTER_VERSION, convert_gguf

    return converted_folder(path, CONVERTER_VERSION, convert_gguf)


def _from_hub(repo: str) -> Path:
    """The local copy of a hub model, fetched if it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repo, allow_patterns=_HUB_FILES, etag_timeout=_HUB_TIMEOUT_SECONDS))
    # One line each: the hub client's own chains of errors say less, in more.
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{repo!r} needs its licence accepted on the hub; do that, then log in with `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(f"the hub has no model {repo!r} (or it is private); check the spelling") from None
    except LocalEntryNotFoundError:
        raise ModelNotFoundError(
            f"{repo!r} is not on this machine, and the hub cannot be reached; connect to the network, give a local "
            f"folder or .gguf file, or use {EMBEDDED_NAME!r}"
        ) from None
    except Exception as error:  # the hub client's and its HTTP library's many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelNotFoundError(
            f"fetching {repo!r} from the hub failed ({reason}); try again, or give a local folder or .gguf file"
        ) from None


def _decoder_config(config: dict[str, Any], name: str) -> DecoderConfig:
    """`parse_config`, for a config.json whose values may be of any type."""
    try:
        return parse_config(config, name)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise UnsupportedModelError(
            f"{name}: config.json has a value that lmnb does not understand ({type(error).__name__}: {error})"
        ) from None


def _eos_ids(config: dict[str, Any], name: str) -> frozenset[int]:
    found = config.get("eos_token_id")
    if found is None:
        return frozenset()
    ids = found if isinstance(found, list) else [found]
    if not all(type(token_id) is int for token_id in ids):
        raise UnsupportedModelError(f"{name} says eos_token_id = {found!r}, which must be token ids")
    return frozenset(ids)
