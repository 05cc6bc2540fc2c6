"""Tensors of a checkpoint folder by name, read on demand from one or several safetensors files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lmnb.errors import LmnbError, ModelNotFoundError, UnsupportedModelError
from lmnb.runtime.model_files import how_to_mend, read_object

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Weights(Protocol):
    """Where a model's tensors come from."""

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, which must have this shape. Raises UnsupportedModelError."""
        ...

    def skip(self, name: str) -> None:
        """Count `name` as read: its values come from elsewhere."""
        ...

    def expect_all_read(self, harmless: Iterable[str] = ()) -> None:
        """UnsupportedModelError if tensors are left over, but for names that end in one of `harmless`."""
        ...


@dataclass(slots=True)
class ReadBytes:
    """How much of a checkpoint has been read; another thread may look."""

    done: int = 0
    total: int = 0
    abandoned: bool = False  # nobody waits any more: what reads is to stop

    def abandon(self) -> None:
        """Have it read no further."""
        self.abandoned = True

    def check(self, what: str) -> None:
        """AbandonedError if nobody waits for `what` any more."""
        if self.abandoned:
            raise AbandonedError(f"the loading of {what} was given up")


class AbandonedError(LmnbError):
    """Ends a thread that loads for nobody."""


class Checkpoint:
    """The tensors of one folder, read straight to `device`. A context manager: the files stay mapped while it is open.
    Counts in `progress` what it has read."""

    def __init__(self, folder: Path, device: torch.device, progress: ReadBytes) -> None:
        self._folder, self._device, self._progress = folder, device, progress
        self._files = [folder / name for name in _file_names(folder)]
        self._open: list[Any] = []
        self._where: dict[str, Any] = {}
        self._unread: set[str] = set()

    def __enter__(self) -> Checkpoint:
        for path in self._files:
            reader = _open(path, self._device)
            self._progress.total += path.stat().st_size
            self._open.append(reader)
            self._where.update(dict.fromkeys(reader.keys(), reader))
        self._unread = set(self._where)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._where.clear()
        self._open.clear()

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, which must have this shape. Raises UnsupportedModelError."""
        reader = self._where.get(name)
        if reader is None:
            raise UnsupportedModelError(f"{self._folder} has no tensor {name!r}: its config.json and weights disagree")
        self._progress.check(str(self._folder))
        tensor: Tensor = reader.get_tensor(name)
        self._progress.done += tensor.nbytes
        if tuple(tensor.shape) != shape:
            raise UnsupportedModelError(
                f"{self._folder}: tensor {name!r} has shape {tuple(tensor.shape)}, config.json asks for {shape}"
            )
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise UnsupportedModelError(f"{self._folder}: tensor {name!r} is {tensor.dtype}, which lmnb does not read")
        self._unread.discard(name)
        return tensor

    def skip(self, name: str) -> None:
        """Count `name` as read: its values come from elsewhere."""
        self._unread.discard(name)

    def expect_all_read(self, harmless: Iterable[str] = ()) -> None:
        """Raise UnsupportedModelError if tensors are left that nobody asked for (suffixes in `harmless` aside)."""
        left = sorted(name for name in self._unread if not name.endswith(tuple(harmless)))
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise UnsupportedModelError(
                f"{self._folder} holds tensors that this kind of model does not have: {', '.join(left[:3])}{more}"
            )


def _open(path: Path, device: torch.device) -> Any:
    """A reader of one file. It is Rust's, and closes with its last reference."""
    try:
        return safe_open(path, framework="pt", device=str(device))
    except (OSError, SafetensorError) as error:
        raise ModelNotFoundError(f"{path} cannot be read ({error}); {how_to_mend(path)}") from None


def _file_names(folder: Path) -> list[str]:
    index = folder / INDEX_FILE
    if index.is_file():
        where = (read_object(index) or {}).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
            raise ModelNotFoundError(f"{index} has no weight_map of file names; {how_to_mend(index)}")
        names = sorted(set(where.values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelNotFoundError(f"{folder} lacks {missing[0]}, which {INDEX_FILE} lists; fetch the model again")
        return names
    if (folder / SINGLE_FILE).is_file():
        return [SINGLE_FILE]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise UnsupportedModelError(
            f"{folder} holds pickled weights (.bin), which can run code when read; convert them once with "
            "transformers: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    raise ModelNotFoundError(f"{folder} holds no {SINGLE_FILE} and no {INDEX_FILE}: it is not a whole model folder")
