"""From what a user names (nothing, a folder, a GGUF file, a hub id) to a model and its tokenizer in memory."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lmnb.errors import ArgumentError, ModelNotFoundError, UnsupportedModelError
from lmnb.kernels import eight_bit, native
from lmnb.runtime import threads
from lmnb.runtime.apart import apart
from lmnb.runtime.argument_checks import shown, shown_error
from lmnb.runtime.batch import KVLayout, Model
from lmnb.runtime.decoder_config import DecoderConfig, NotFusedError, parse_config
from lmnb.runtime.dummy_weights import DummyCheckpoint
from lmnb.runtime.hf_tokenizer import load_tokenizer
from lmnb.runtime.llama import LlamaModel
from lmnb.runtime.load_options import (
    _eight_bit,
    resolve_device,
    resolve_dtype,
    resolve_quantization,
    why_integers_cost,
)
from lmnb.runtime.memory import memory_for
from lmnb.runtime.model_files import read_object
from lmnb.runtime.model_source import resolve_source
from lmnb.runtime.stored_integers import StoredIntegers
from lmnb.runtime.tokenizer import Tokenizer
from lmnb.runtime.weight_reader import unpacked_note
from lmnb.runtime.weights import Checkpoint, ReadBytes

_WAIT_SECONDS = 0.1
_SMALLER = "unload what else is there, give quantization='int8', or take a smaller model"


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
    on_progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Load a model.

    `source`: None or "smollm2" for the embedded one; a transformers folder; a GGUF file; or a hub id such as
    "Qwen/Qwen3-0.6B". `dtype`: "auto" is bfloat16 where the hardware computes in it or a file's integers are kept, else
    float32.
    `device`: "auto" is "cuda" if there is one, else "cpu". `quantization`: "gguf" computes with the 4- and 8-bit
    integers of a GGUF file as they are (on a CPU, in bfloat16), "none" with the weights they stand for; "auto" is
    "gguf" where `dtype` is "auto", there are such integers, and a CPU that has the compiled kernels or multiplies
    bfloat16. "int8" and, on a GPU, "fp8" make 8-bit weights of any at load; sums and everything else stay in `dtype`.
    `load_format`: "dummy" makes weights up, for measurements: a folder then needs no more than its config.json and its
    tokenizer.
    `on_progress` is called some ten times a second, in this thread, with the bytes read so far and all there are to
    read; if it raises, that is warned of, and it is called no more. Raises ModelNotFoundError, UnsupportedModelError,
    OutOfMemoryError and ArgumentError. An interrupt ends the wait; a conversion that was begun is finished, and weights
    are read no further.

    The work is done in a thread that ends with it. OpenMP keeps a team of threads for each thread that has computed,
    and once there are more of them than processors, they sleep between two calls instead of waiting awake. With a
    team left behind here, the engine's own would decode at half the speed (measured on 2 cores).
    """
    plan = plan_load(source, dtype=dtype, device=device, quantization=quantization, load_format=load_format)
    return plan.read(on_progress)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A model that can be loaded, as far as can be told without its weights. `decoder` is None for one that the
    transformers library runs."""

    name: str
    folder: Path
    config: dict[str, Any]
    decoder: DecoderConfig | None
    tokenizer: Tokenizer
    dtype: torch.dtype
    device: torch.device
    quantization: str
    weights: DummyCheckpoint | Checkpoint | None
    integers: StoredIntegers | None
    why_unpacked: str  # why none are kept although there are some
    eight_bit: eight_bit.EightBitWeights | None
    kernels: threading.Thread
    progress: ReadBytes

    @property
    def kv_layout(self) -> KVLayout | None:
        """How keys and values will lie in a pool; None where only the loaded model can tell."""
        return None if self.decoder is None else self.decoder.kv_layout(self.dtype, self.device)

    @property
    def vocab_size(self) -> int | None:
        """The width of the logits; None where only the loaded model can tell."""
        return None if self.decoder is None else self.decoder.vocab_size

    def read(self, on_progress: Callable[[int, int], None] | None = None) -> LoadedModel:
        """Read the weights; see `load_model`. For one use."""
        progress = self.progress

        def tell() -> None:
            nonlocal on_progress
            if on_progress is None or not progress.total:
                return
            try:
                on_progress(progress.done, progress.total)
            except Exception as error:  # it shows how far the load has come; the load itself goes on
                on_progress = None
                warnings.warn(
                    f"on_progress raised {type(error).__name__} ({shown_error(error)}) and is called no more; the "
                    "model is loaded all the same",
                    RuntimeWarning,
                    stacklevel=2,
                )

        try:
            return apart(partial(_read, self), "lmnb-load", meanwhile=tell, stop=progress.abandon)
        finally:
            progress.abandon()  # after an interrupt, the thread need not go on


def plan_load(
    source: str | Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quantization: str = "auto",
    load_format: str = "auto",
) -> LoadPlan:
    """Everything of `load_model` that needs no weights in memory, and all its errors that can be known so early. A
    GGUF file is converted, and a hub's model fetched, if that was not done before."""
    return apart(partial(_plan, source, dtype, device, quantization, load_format), "lmnb-load")


def _plan(source: str | Path | None, dtype: str, device: str, quantization: str, load_format: str) -> LoadPlan:
    if load_format not in ("auto", "dummy"):
        raise ArgumentError(f"load_format must be 'auto' or 'dummy', not {shown(load_format)}")
    torch_device = resolve_device(device)
    may_keep = resolve_quantization(quantization, dtype, torch_device)
    fewer_bits = quantization in ("gguf", *eight_bit.KINDS)  # computed with in bfloat16, unless a GPU is told otherwise
    torch_dtype = resolve_dtype("bfloat16" if fewer_bits and dtype == "auto" else dtype, torch_device)
    kernels = _prepare_kernels(torch_device, may_keep or torch_dtype is torch.bfloat16)
    made = _eight_bit(quantization, torch_dtype, torch_device)
    folder, name = resolve_source(source)
    config = read_object(folder / "config.json")
    if config is None:
        raise ModelNotFoundError(f"{folder} holds no config.json: it is not a transformers model folder")
    generation = read_object(folder / "generation_config.json") or {}
    tokenizer = load_tokenizer(folder, _eos_ids(config, name) | _eos_ids(generation, name), name)
    integers = StoredIntegers(folder) if may_keep else None
    if quantization == "gguf" and not integers:
        raise ArgumentError(
            f"{name} holds no 4- or 8-bit integers that lmnb computes with (Q4_0, Q4_1 or Q8_0 of a GGUF file); "
            "leave quantization='auto'"
        )
    if load_format == "dummy":
        integers = None
    why_unpacked = why_integers_cost() if quantization == "auto" and integers else ""
    if integers and not why_unpacked:
        torch_dtype = torch.bfloat16
    progress = ReadBytes()
    weights: DummyCheckpoint | Checkpoint | None = None
    decoder: DecoderConfig | None = None
    try:
        decoder = _decoder_config(config, name)
    except NotFusedError:
        _check_transformers(config, name, load_format, None if made is None else quantization)
    else:
        dummy = load_format == "dummy"
        weights = DummyCheckpoint(torch_dtype, torch_device) if dummy else Checkpoint(folder, torch_device, progress)
    return LoadPlan(
        name=name,
        folder=folder,
        config=config,
        decoder=decoder,
        tokenizer=tokenizer,
        dtype=torch_dtype,
        device=torch_device,
        quantization=quantization,
        weights=weights,
        integers=None if why_unpacked else integers,
        why_unpacked=why_unpacked,
        eight_bit=made,
        kernels=kernels,
        progress=progress,
    )


def _read(plan: LoadPlan) -> LoadedModel:
    while plan.kernels.is_alive():
        plan.kernels.join(_WAIT_SECONDS)
        plan.progress.check(plan.name)
    with memory_for(plan.name, plan.device, _SMALLER):
        model = _model(plan)
    if plan.quantization == "gguf" and isinstance(model, LlamaModel) and model.weight_bits >= 16:
        raise ArgumentError(
            f"this machine has no product for {plan.name}'s integers: {native.why_not()}, and torch "
            f"{torch.__version__} has none of its own for them; leave quantization='auto'"
        )
    return LoadedModel(model, plan.tokenizer)


def _model(plan: LoadPlan) -> Model:
    name, decoder, weights = plan.name, plan.decoder, plan.weights
    if decoder is None or weights is None:
        from lmnb.runtime.transformers_model import TransformersModel

        return TransformersModel(name, plan.folder, plan.config, plan.dtype, plan.device)
    if isinstance(weights, DummyCheckpoint):
        return LlamaModel(name, decoder, weights, plan.dtype, plan.device, None, plan.eight_bit)
    with weights as checkpoint:
        model = LlamaModel(name, decoder, checkpoint, plan.dtype, plan.device, plan.integers, plan.eight_bit)
    if plan.why_unpacked:
        model.weight_note = unpacked_note(plan.why_unpacked)
    return model


def _check_transformers(config: dict[str, Any], name: str, load_format: str, eight_bits: str | None) -> None:
    """UnsupportedModelError for what the transformers library is not asked to do here."""
    if load_format == "dummy":
        raise UnsupportedModelError(
            f"{name}: load_format='dummy' makes weights up for architectures that lmnb runs by itself, not for "
            "this one; load its own weights"
        )
    if eight_bits is not None:
        raise UnsupportedModelError(
            f"{name}: quantization={eight_bits!r} is for architectures that lmnb runs by itself, not for this "
            "one; leave it out"
        )
    from lmnb.runtime.transformers_model import refuse_by_config

    refuse_by_config(config, name)


def _prepare_kernels(device: torch.device, computes_in_bfloat16: bool) -> threading.Thread:
    """Compile, or find, a CPU's own kernels while the rest is loaded."""
    wanted = device.type == "cpu" and computes_in_bfloat16
    thread = threading.Thread(target=native.prepare if wanted else lambda: None, name="lmnb-kernels", daemon=True)
    threads.start(thread)
    return thread


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
