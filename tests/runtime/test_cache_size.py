"""How users say how large the KV pool is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from context_support import fake_runtime

from lmnb.errors import ArgumentError
from lmnb.runtime import config
from lmnb.runtime.argument_checks import shown
from lmnb.runtime.batch import KVLayout
from lmnb.runtime.cache_size import pool_size
from lmnb.runtime.config import EngineConfig, resolve

LAYOUT = KVLayout(num_layers=2, num_kv_heads=4, head_dim=32, dtype=torch.bfloat16, device=torch.device("cpu"))
HUGE = [
    "9" * 400 + "GiB",
    "9" * 5000,
    "9" * 5000 + "B",
    "0." + "0" * 5000 + "1B",
    10**20,
    10**300,
    10**5000,
    -(10**5000),
]
TOKEN = 2 * 2 * 4 * 32 * 2  # bytes


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        (4096, 4096),
        ("4096", 4096),
        (4096.0, 4096),
        ("1KiB", 1024 // TOKEN),
        ("512MiB", 512 * 2**20 // TOKEN),
        ("60 GiB", 60 * 2**30 // TOKEN),
        ("1.5gb", 1_500_000_000 // TOKEN),
        (f"{TOKEN}B", 1),
    ],
)
def test_tokens_and_memory(said: Any, tokens: int) -> None:
    assert pool_size(said).tokens(LAYOUT) == tokens


@pytest.mark.parametrize(
    "said",
    ["", "lots", "60G", "-1", "1e9B", "60GiB!", 0, -5, 0.5, True, "0", "3B", "0GiB", *HUGE],
    ids=lambda said: shown(said)[:20],
)
def test_anything_else_is_refused(said: Any) -> None:
    with pytest.raises(ArgumentError, match="kv_cache") as raised:
        pool_size(said).tokens(LAYOUT)
    assert len(str(raised.value)) < 200


def test_a_pool_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(ArgumentError, match="GiB: give a smaller kv_cache"):
        resolve(EngineConfig(pool_tokens=pool_size("900TB").tokens(LAYOUT)), LAYOUT, 4096)


def test_a_runtime_has_what_was_asked_for() -> None:
    with fake_runtime(kv_cache="64KiB") as runtime:
        status = runtime.status()
        assert (status.pool_bytes, status.pool_tokens) == (64 * 1024, 64 * 1024 // 16)


@pytest.mark.parametrize("said", ["536870912\n", "max\n", "", None])
def test_a_containers_memory_is_all_that_there_is(
    said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    if said is not None:
        limit.write_text(said, "ascii")
    monkeypatch.setattr(config, "_LIMIT_FILES", (tmp_path / "missing", limit))
    if said and said[0].isdigit():
        assert resolve(EngineConfig(), LAYOUT, 10**9).pool_tokens == 2**29 // 8 // TOKEN
        with pytest.raises(ArgumentError, match=r"has 0\.5 GiB: give a smaller kv_cache"):
            resolve(EngineConfig(pool_tokens=2**30 // TOKEN), LAYOUT, 4096)
    else:
        assert resolve(EngineConfig(pool_tokens=2**30 // TOKEN), LAYOUT, 4096).pool_tokens == 2**30 // TOKEN
