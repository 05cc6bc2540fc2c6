"""Fixtures of the runtime's tests: the embedded model, its tokenizer without its weights, and time to compile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from time_limits import time_to_compile

from lmnb.runtime import engine
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.embedded import MODEL_NAME, embedded_gguf
from lmnb.runtime.gguf_file import GGUFFile
from lmnb.runtime.gguf_tokenizer import tokenizer_files
from lmnb.runtime.hf_tokenizer import HFTokenizer
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Tokenizer:
    """SmolLM2's tokenizer: 49152 tokens, byte-level, 17 markers, ended by `<|im_end|>` (2)."""
    definition, settings = tokenizer_files(GGUFFile(embedded_gguf()))
    return HFTokenizer(json.dumps(definition), settings, {2}, MODEL_NAME)


@pytest.fixture(scope="session")
def embedded_float32() -> LoadedModel:
    """SmolLM2 in float32, loaded once."""
    return load_model(dtype="float32")


@pytest.fixture(autouse=True)
def _time_to_compile() -> Iterator[None]:
    with time_to_compile():
        yield


@pytest.fixture(params=[False, True], ids=["in-turn", "ahead"])
def step_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines whose test says nothing of it take one step after the other, and launch each ahead of the last one's
    tokens."""
    resolve = engine.resolve

    def resolved(config: EngineConfig, *args: Any) -> Any:
        return resolve(replace(config, overlap=request.param if config.overlap is None else config.overlap), *args)

    monkeypatch.setattr(engine, "resolve", resolved)
