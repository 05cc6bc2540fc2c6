"""Any causal language model of the transformers library as a `Model`, through its exchangeable attention.

Slower than the decoder of `llama.py`, since each operation is the library's own, but it shares all of the engine:
the paged cache, batching, constraints. Whatever a model does that does not fit is found when it is loaded: it is run on
a few tokens both ways, whole by its own attention and in pieces by ours, and refused if the results differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmnb.errors import UnsupportedModelError
from lmnb.kernels.attention_plan import AttentionPlan, plan_attention
from lmnb.kernels.fp8 import FP8_MAX
from lmnb.runtime import attention_hook
from lmnb.runtime.attention_hook import LayerAttention, PagedStep, RecordingStep
from lmnb.runtime.batch import ForwardBatch, KVLayout

_PROBE_TOKENS = 12
_PROBE_CHUNK = 7  # tokens of the first of two passes
# Largest difference of the probe's logits, in their standard deviations: rounding is far below, a mistake far above.
_TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.25, torch.float16: 0.1}
_DEFAULT_CONTEXT = 2048  # of models that do not say how long a text they were made for


class TransformersModel:
    """A transformers model with its weights in memory. Implements `Model`; `forward` is for one thread at a time."""

    takes_device_plan = False
    can_be_strict = False

    def __init__(
        self, name: str, folder: Path, config: Mapping[str, Any], dtype: torch.dtype, device: torch.device
    ) -> None:
        refuse_by_config(config, name)
        self.name = name
        self._model = model = _load(name, folder, dtype).to(device)
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        with _quiet():
            own = _own_logits(model, name)
            layers = _record(model, name)
        first = layers[0]
        self.num_heads = first.num_heads
        self.kv_layout = KVLayout(
            num_layers=len(layers),
            num_kv_heads=first.num_kv_heads,
            head_dim=first.head_dim,
            dtype=dtype,
            device=device,
        )
        self.vocab_size = own.shape[1]
        self.context_tokens = int(getattr(model.config, "max_position_embeddings", None) or _DEFAULT_CONTEXT)
        self.weight_note = ""
        self.weight_bytes = sum(p.numel() * p.element_size() for p in {id(p): p for p in model.parameters()}.values())
        self._check(own)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """See `Model.forward`."""
        plans: dict[int | None, AttentionPlan] = {}

        def plan(window: int | None) -> AttentionPlan:
            if window not in plans:
                plans[window] = self._plan(batch, window)
            return plans[window]

        step = PagedStep(keys, values, batch.out_slots, plan)
        wanted = {} if batch.logits_rows is None or not self._takes_rows else {"logits_to_keep": batch.logits_rows}
        logits = _call(self._model, batch.input_ids, batch.positions, step, **wanted)
        if batch.logits_rows is not None and not wanted:
            logits = logits[batch.logits_rows]
        return logits.float()

    def _plan(self, batch: ForwardBatch, window: int | None) -> AttentionPlan:
        return plan_attention(
            batch.slot_table,
            batch.query_starts,
            batch.kv_lens,
            num_decode=batch.num_decode,
            shared_len=batch.shared_len,
            heads_per_kv=self.num_heads // self.kv_layout.num_kv_heads,
            dtype=self.kv_layout.dtype,
            window=window,
        )

    def _check(self, own: Tensor) -> None:
        """Run the probe in two pieces over a small pool; raises UnsupportedModelError if it differs from `own`. Sees
        how large keys and values are, too."""
        layout = self.kv_layout
        shape = (_PROBE_TOKENS, layout.num_kv_heads, layout.head_dim)
        keys = [torch.zeros(shape, dtype=layout.dtype, device=layout.device) for _ in range(layout.num_layers)]
        values = [torch.zeros_like(key) for key in keys]
        places = torch.arange(_PROBE_TOKENS, device=layout.device)
        found = []
        for start, stop in ((0, _PROBE_CHUNK), (_PROBE_CHUNK, _PROBE_TOKENS)):
            batch = ForwardBatch(
                input_ids=_probe_ids(self._model)[start:stop],
                positions=places[start:stop],
                out_slots=places[start:stop],
                slot_table=places[None],
                query_starts=[0, stop - start],
                kv_lens=[stop],
                logits_rows=places[: stop - start],
            )
            found.append(self.forward(batch, keys, values))
        difference = float((torch.cat(found) - own).abs().max() / own.std().clamp(min=1e-6))
        if not difference <= _TOLERANCE[layout.dtype]:
            raise _unsupported(self.name, "its attention gives another result in pieces than at once")
        self.takes_fp8_keys = all(float(pool.abs().max()) <= FP8_MAX for pool in (*keys, *values))


def refuse_by_config(config: Mapping[str, Any], name: str) -> None:
    """UnsupportedModelError for what a config.json alone shows not to run here."""
    if config.get("quantization_config"):
        raise UnsupportedModelError(
            f"{name} has quantised weights, which lmnb does not read; use the unquantised model or a GGUF"
        )
    if config.get("is_encoder_decoder"):
        raise _unsupported(name, "it is an encoder with a decoder")
    if kinds := _rope_kinds(config) & {"dynamic", "longrope"}:
        raise _unsupported(name, f"its {kinds.pop()} rotation depends on the longest text in a batch")
    if config.get("vision_config") or config.get("audio_config"):
        raise _unsupported(name, "it reads images or sounds")


def _rope_kinds(config: Mapping[str, Any]) -> set[str]:
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    entries = [found, *(value for value in found.values() if isinstance(value, Mapping))]
    return {str(entry.get("rope_type") or entry.get("type")) for entry in entries}


def _unsupported(name: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{name} cannot run here: {why}; lmnb runs causal text models")


def _load(name: str, folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    attention_hook.install()
    try:
        with _quiet():
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation="eager",
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # its checks of configurations and files raise many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UnsupportedModelError(f"{name} cannot be loaded by transformers ({reason})") from None
    absent = sorted(loading["missing_keys"]) + sorted(str(found) for found in loading["mismatched_keys"])
    if absent:
        raise UnsupportedModelError(
            f"{folder} lacks tensors that its config.json asks for: {', '.join(absent[:3])}"
            + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        )
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' progress bars and notes are not for a notebook's cell."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _probe_ids(model: Any) -> Tensor:
    """Token ids [_PROBE_TOKENS], each another one if the vocabulary is large enough."""
    size = model.get_input_embeddings().weight.shape[0]
    ids: Tensor = torch.arange(3, 3 + 7 * _PROBE_TOKENS, 7, device=model.device) % size
    return ids


@torch.inference_mode()
def _own_logits(model: Any, name: str) -> Tensor:
    """Logits [_PROBE_TOKENS, vocab_size] of the probe by the model's own attention. Raises UnsupportedModelError."""
    try:
        logits: Tensor = model(input_ids=_probe_ids(model)[None], use_cache=False).logits[0].float()
    except Exception as error:  # whatever its code does with a configuration that does not fit
        raise _unsupported(name, f"transformers itself cannot run it ({' '.join(str(error).split())[:200]})") from error
    return logits


@torch.inference_mode()
def _call(model: Any, ids: Tensor, positions: Tensor, step: attention_hook.Step, **options: Any) -> Tensor:
    """Logits of a step over all new tokens, as one row."""
    with attention_hook.running(step):
        logits: Tensor = model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **options).logits[0]
    return logits


def _windows_are_told(config: Any, layers: list[LayerAttention]) -> bool:
    """Whether the layers said what the configuration says of windows. (A window that is only in a mask is not seen.)"""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if getattr(config, "attention_chunk_size", None):
        return False
    if kinds is not None:
        return [layer.window is not None for layer in layers] == [kind == "sliding_attention" for kind in kinds]
    used = window is not None and getattr(config, "use_sliding_window", True)
    return not used or any(layer.window == window for layer in layers)


def _record(model: Any, name: str) -> list[LayerAttention]:
    """How each layer attends. Leaves the model with our attention. Raises UnsupportedModelError."""
    step = RecordingStep()
    try:
        model.set_attn_implementation(attention_hook.NAME)
        ids = _probe_ids(model)
        _call(model, ids, torch.arange(len(ids), device=model.device), step)
    except Exception as error:  # whatever its code does with what it does not know
        raise _unsupported(name, "its attention cannot be exchanged") from error
    layers = [step.layers[index] for index in sorted(step.layers)]
    if not layers:
        raise _unsupported(name, "its attention cannot be exchanged, or it has none")
    if step.num_calls != len(layers) or sorted(step.layers) != list(range(len(layers))):
        raise _unsupported(name, "not every layer has an attention of its own")
    if len(layers) != int(getattr(model.config, "num_hidden_layers", len(layers))):
        raise _unsupported(name, "some of its layers do not attend, but keep a state")
    if asked := {what for layer in layers for what in layer.others}:
        raise _unsupported(name, f"its attention asks for {' and '.join(sorted(asked))}")
    if unknown := set(getattr(model.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        raise _unsupported(name, f"some of its layers are of the kind {' or '.join(sorted(unknown))}")
    if not _windows_are_told(model.config, layers):
        raise _unsupported(name, "it does not tell its attention how far it sees")
    if len({(x.num_heads, x.num_kv_heads, x.head_dim, x.value_dim) for x in layers}) > 1:
        raise _unsupported(name, "its layers have heads of different sizes")
    if layers[0].head_dim != layers[0].value_dim:
        raise _unsupported(name, "its keys and values have different sizes")
    return layers
