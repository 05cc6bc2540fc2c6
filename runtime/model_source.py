"""From what a user names (nothing, a folder, a GGUF file, a hub id) to a folder on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lmnb.errors import ArgumentError, ModelNotFoundError
from lmnb.runtime.argument_checks import current_folder, shown
from lmnb.runtime.embedded import EMBEDDED_NAME, MODEL_NAME, embedded_gguf
from lmnb.runtime.model_cache import converted_folder

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]
_HUB_TIMEOUT_SECONDS = 5.0  # to find out that there is no network; downloads themselves may take as long as they need


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
        f"check the path (here: {current_folder()}), or use {EMBEDDED_NAME!r} for the embedded model"
    )


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
