"""Fixtures of the runtime's tests: the embedded model's tokenizer, without its weights."""

from __future__ import annotations

import json

import pytest

from lmnb.runtime.embedded import MODEL_NAME, embedded_gguf
from lmnb.runtime.gguf_file import GGUFFile
from lmnb.runtime.gguf_tokenizer import tokenizer_files
from lmnb.runtime.hf_tokenizer import HFTokenizer
from lmnb.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Tokenizer:
    """SmolLM2's tokenizer: 49152 tokens, byte-level, 17 markers, ended by `<|im_end|>` (2)."""
    definition, settings = tokenizer_files(GGUFFile(embedded_gguf()))
    return HFTokenizer(json.dumps(definition), settings, {2}, MODEL_NAME)
