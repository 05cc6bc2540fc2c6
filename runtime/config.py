"""The engine's knobs, and the pure function that turns "unset" into numbers for a device."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from lmnb.errors import ArgumentError, OutOfMemoryError, UnsupportedModelError
from lmnb.runtime.argument_checks import count, flag, number
from lmnb.runtime.batch import KVLayout
from lmnb.runtime.cache_size import in_8_bits, stored_layout

_COUNTS = ("pool_tokens", "max_running", "prefill_chunk", "min_shared_tokens", "max_bypass")
_FLAGS = ("prefix_cache", "jump_forward", "plain_masks", "overlap", "cuda_graphs", "tree_attention", "deterministic")
_MAY_BE_OPEN = ("pool_tokens", "max_running", "prefill_chunk", "overlap")
_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_ROW_BYTES = 8 * 1024  # of the table that says where a sequence's tokens are, as it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What a user may set; None means: let the engine decide.

    `pool_tokens`: KV slots, one per token. `kv_cache_dtype`: what they store, "auto" (the model's own dtype) or
    "fp8_e4m3". `max_running`: sequences decoded together. `prefill_chunk`: prompt
    tokens computed in one step. `min_shared_tokens`: a waiting request lets another compute their common prefix
    when that saves at least so many tokens. `max_bypass`: a request that others overtook so often goes first.
    `prefix_cache=False` forgets every prompt at its end (for measurements). `jump_forward`: whether text that a
    grammar forces is added at once, unless a request says otherwise; without it the same tokens take a step each.
    `plain_masks`: leave it to the model how it writes what is forced (for measurements). `compile_seconds`: a
    constraint that takes longer to compile fails its request. `overlap`: launch a step before the last one's tokens
    are known (default: on a GPU). `deterministic`: a request's tokens depend on its prompt and seed only, to the last
    bit, whatever it is batched with, cached, cut or preempted; slower. `cuda_graphs` and `tree_attention` (a key that
    several requests share is read once) are there to be switched off for measurements.
    """

    pool_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    max_running: int | None = None
    prefill_chunk: int | None = None
    min_shared_tokens: int = 8
    max_bypass: int = 64
    prefix_cache: bool = True
    jump_forward: bool = True
    plain_masks: bool = False
    compile_seconds: float = 10.0
    overlap: bool | None = None
    cuda_graphs: bool = True
    tree_attention: bool = True
    deterministic: bool = False

    def __post_init__(self) -> None:
        """ArgumentError for values of another kind, and for counts below 1."""
        in_8_bits(self.kv_cache_dtype)
        object.__setattr__(self, "compile_seconds", number("compile_seconds", self.compile_seconds))
        for name in (*_COUNTS, *_FLAGS):
            value = getattr(self, name)
            if value is None and name in _MAY_BE_OPEN:
                continue
            read = flag(name, value) if name in _FLAGS else count(name, value)
            object.__setattr__(self, name, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The same, decided."""

    pool_tokens: int
    kv_layout: KVLayout  # as the pool stores it
    max_running: int
    prefill_chunk: int
    min_shared_tokens: int
    max_bypass: int
    prefix_cache: bool
    jump_forward: bool = True
    plain_masks: bool = False
    compile_seconds: float = 10.0
    overlap: bool = False
    cuda_graphs: bool = True
    tree_attention: bool = True
    deterministic: bool = False


def resolve(config: EngineConfig, layout: KVLayout, context_tokens: int) -> EngineLimits:
    """Fill in what `config` leaves open, for a model whose keys and values are as `layout` says. A CPU step must stay
    short enough for Stop to feel immediate, so its prefill chunk is small; a GPU wants large ones. ArgumentError for
    impossible values."""
    check_fits(config, layout)
    layout = stored_layout(layout, config.kv_cache_dtype)
    on_gpu = layout.device.type == "cuda"

    def decide(value: int | None, default: int) -> int:
        return default if value is None else value

    max_running = decide(config.max_running, 512 if on_gpu else 64)
    fitting = _free_bytes(layout.device) // layout.bytes_per_token
    limits = EngineLimits(
        pool_tokens=decide(config.pool_tokens, min(fitting, max_running * context_tokens)),
        kv_layout=layout,
        max_running=max_running,
        prefill_chunk=decide(config.prefill_chunk, 8192 if on_gpu else 256),
        min_shared_tokens=config.min_shared_tokens,
        max_bypass=config.max_bypass,
        prefix_cache=config.prefix_cache,
        jump_forward=config.jump_forward,
        plain_masks=config.plain_masks,
        compile_seconds=config.compile_seconds,
        overlap=on_gpu if config.overlap is None else config.overlap,
        cuda_graphs=config.cuda_graphs,
        tree_attention=config.tree_attention,
        deterministic=config.deterministic,
    )
    if config.pool_tokens is None and fitting < 1:
        raise OutOfMemoryError(
            f"{layout.device} has no memory left for keys and values beside the model's weights: unload what else is "
            "there, or take a smaller model"
        )
    return limits


def check_fits(config: EngineConfig, layout: KVLayout) -> None:
    """ArgumentError if what is asked for needs more memory than a device has in all, be it free or not. Needs a
    model's layout, and not the model."""
    total = _total_bytes(layout.device)
    layout = stored_layout(layout, config.kv_cache_dtype)
    wanted = (config.max_running or 0) * _ROW_BYTES
    if wanted > total:
        raise ArgumentError(
            f"max_running={config.max_running:,} sequences need {wanted / 2**30:,.1f} GiB for what is kept of each, "
            f"and {layout.device} has {total / 2**30:,.1f} GiB: give a smaller max_running"
        )
    wanted = (config.pool_tokens or 0) * layout.bytes_per_token
    if wanted > total:
        raise ArgumentError(
            f"a KV pool of {config.pool_tokens:,} tokens needs {wanted / 2**30:,.1f} GiB, and {layout.device} has "
            f"{total / 2**30:,.1f} GiB: give a smaller kv_cache"
        )


def check_strict(config: EngineConfig, name: str, can_be_strict: bool) -> None:
    """UnsupportedModelError if `deterministic` is asked of the model `name`, which cannot be."""
    if config.deterministic and not can_be_strict:
        raise UnsupportedModelError(
            f"{name} runs in the transformers library, whose results depend on the batch; leave out deterministic=True"
        )


def _free_bytes(device: torch.device) -> int:
    """Memory the pool may take: most of what is free on a GPU, a modest share of a computer's own."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free * 0.85)
    return min(_total_bytes(device) // 8, 2 << 30)


def _total_bytes(device: torch.device) -> int:
    """All memory that there is: on a CPU, for this process, which may be in a container that has a part of it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_container_limits()])


def _container_limits() -> list[int]:
    """Bytes that this process's control groups let it have, where they say so (Linux, both versions)."""
    found = []
    for path in _LIMIT_FILES:
        with suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int(path.read_text("ascii")))
    return [limit for limit in found if limit > 0]
