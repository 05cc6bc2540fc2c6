"""The engine's knobs, and the pure function that turns "unset" into numbers for a device."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from lmnb.errors import ArgumentError
from lmnb.runtime.batch import KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What a user may set; None means: let the engine decide.

    `pool_tokens`: KV slots, one per token. `max_running`: sequences decoded together. `prefill_chunk`: prompt
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The same, decided."""

    pool_tokens: int
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
    """Fill in what `config` leaves open. A CPU step must stay short enough for Stop to feel immediate, so its
    prefill chunk is small; a GPU wants large ones. ArgumentError for impossible values."""
    on_gpu = layout.device.type == "cuda"

    def decide(value: int | None, default: int) -> int:
        return default if value is None else value

    max_running = decide(config.max_running, 512 if on_gpu else 64)
    fitting = _free_bytes(layout.device) // layout.bytes_per_token
    limits = EngineLimits(
        pool_tokens=decide(config.pool_tokens, min(fitting, max_running * context_tokens)),
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
    total = _total_bytes(layout.device)
    wanted = (config.pool_tokens or 0) * layout.bytes_per_token
    if wanted > total:
        raise ArgumentError(
            f"a KV pool of {config.pool_tokens:,} tokens needs {wanted / 2**30:,.1f} GiB, and {layout.device} has "
            f"{total / 2**30:,.1f} GiB: give a smaller kv_cache"
        )
    for name in ("max_running", "prefill_chunk", "min_shared_tokens", "max_bypass", "pool_tokens"):
        if getattr(limits, name) < 1:
            raise ArgumentError(f"{name} must be at least 1, not {getattr(limits, name)}")
    return limits


def _free_bytes(device: torch.device) -> int:
    """Memory the pool may take: most of what is free on a GPU, a modest share of a computer's own."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free * 0.85)
    return min(_total_bytes(device) // 8, 2 << 30)


def _total_bytes(device: torch.device) -> int:
    """All memory that there is."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
