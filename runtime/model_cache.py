"""Converted models in the cache folder: found by the source file's fingerprint, whole or not there at all.

A conversion is written into a folder of its own and renamed in one step, so that processes that start at once
do not see each other's halves. A manifest, written last, says what a whole folder holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from lmnb.env import cache_dir
from lmnb.errors import ModelNotFoundError

_MANIFEST = "lmnb.json"
_SAMPLE_BYTES = 1 << 16
_NUM_SAMPLES = 64
# Files up to this size are checked by content on every load (about a second a gigabyte), larger ones by size.
_HASHED_BYTES = 512 << 20
_ABANDONED_SECONDS = 24 * 3600


def converted_folder(source: Path, version: int, convert: Callable[[Path, Path], None]) -> Path:
    """The folder that `convert(source, folder)` fills, made if there is no whole one for this file and version."""
    key = f"{source.stem}-{fingerprint(source)}-v{version}"
    final = cache_dir() / "models" / key
    if is_whole(final):
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final.parent)
        work = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=final.parent))
    except OSError as error:
        raise ModelNotFoundError(
            f"the converted model cannot be written to {final.parent} ({error}); "
            "set LMNB_CACHE to a folder that can be written to"
        ) from error
    try:
        convert(source, work)
        _write_manifest(work)
        return _publish(work, final)
    except (OSError, SafetensorError) as error:  # its library tells of a full disk by an error of its own
        raise ModelNotFoundError(
            f"writing the converted model to {final.parent} failed ({error}); "
            "free some space, or set LMNB_CACHE to another folder"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Delete what processes that were killed while converting left behind, a day or more ago."""
    for path in folder.glob(".*"):
        if path.is_dir() and _age(path) > _ABANDONED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _age(path: Path) -> float:
    """Seconds since it was changed; 0 if it is gone, which another process may just have seen to."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def fingerprint(path: Path) -> str:
    """16 hex digits of a file's size and samples of its content, both ends included: quick for any size."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    last = max(0, size - _SAMPLE_BYTES)
    with path.open("rb") as file:
        for sample in range(_NUM_SAMPLES):
            file.seek(last * sample // (_NUM_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def is_whole(folder: Path) -> bool:
    """Whether `folder` holds exactly what its manifest says."""
    try:
        files = json.loads((folder / _MANIFEST).read_text("utf-8"))["files"]
        present = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {_MANIFEST}
        # A manifest of nothing, or of less than there is, says nothing about the rest.
        return (
            bool(files) and present <= set(files) and all(_describe(folder / n) == found for n, found in files.items())
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _describe(path: Path) -> dict[str, object]:
    size = path.stat().st_size
    if size > _HASHED_BYTES:
        return {"bytes": size}
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _write_manifest(folder: Path) -> None:
    files = {path.name: _describe(path) for path in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps({"files": files}, indent=1), "utf-8")
    for path in folder.iterdir():
        path.chmod(0o644)  # some writers make files for their owner only


def _publish(work: Path, final: Path) -> Path:
    """Rename `work` to `final`. If another process was first, its folder is as good; a broken one is replaced."""
    work.chmod(0o755)  # mkdtemp's folders are for their owner only; a cache may be shared
    for _ in range(10):  # more than once only if other processes publish at this very moment
        if final.exists():
            if is_whole(final):
                return final
            _move_away(final)
        with contextlib.suppress(OSError):  # another process may have published again
            os.rename(work, final)
            return final
    raise ModelNotFoundError(f"{final} cannot be replaced; delete it and load again")


def _move_away(broken: Path) -> None:
    """Delete a broken folder by way of a rename, so that only one of several processes deletes it."""
    grave = Path(tempfile.mkdtemp(prefix=f".broken-{broken.name}-", dir=broken.parent))
    with contextlib.suppress(FileNotFoundError):  # another process did
        os.rename(broken, grave / "old")
    shutil.rmtree(grave, ignore_errors=True)
