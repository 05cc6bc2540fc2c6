"""The integers of a quantised file, kept beside the converted folder's dequantised weights.

transformers reads the weights file and knows nothing of this one; lmnb computes with the integers where it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lmnb.errors import ModelNotFoundError
from lmnb.kernels.quantized_linear import QuantizedWeight
from lmnb.runtime.model_files import how_to_mend

_FILE = "integers.safetensors"


def write_integers(folder: Path, weights: Iterable[tuple[str, QuantizedWeight]]) -> None:
    """Keep `weights`, by transformers' names, in `folder`; nothing if there are none."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    for name, weight in weights:
        tensors[f"{name}.integers"], tensors[f"{name}.scale"] = weight.integers, weight.scale
        if weight.minimum is not None:
            tensors[f"{name}.minimum"] = weight.minimum
    if tensors:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / _FILE)


class StoredIntegers(Mapping[str, QuantizedWeight]):
    """The quantised weights in a folder, by transformers' names, read on demand; empty if there are none."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelNotFoundError if there is a file that cannot be read."""
        self._reader: Any = None
        self._stored: frozenset[str] = frozenset()
        path = folder / _FILE
        if not path.is_file():
            return
        try:
            self._reader = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelNotFoundError(f"{path} cannot be read ({error}); {how_to_mend(path)}") from None
        self._stored = frozenset(self._reader.keys())

    def __getitem__(self, name: str) -> QuantizedWeight:
        if f"{name}.integers" not in self._stored:
            raise KeyError(name)
        get = self._reader.get_tensor
        minimum = get(f"{name}.minimum") if f"{name}.minimum" in self._stored else None
        return QuantizedWeight(get(f"{name}.integers"), get(f"{name}.scale"), minimum)

    def __iter__(self) -> Iterator[str]:
        return (name.removesuffix(".integers") for name in sorted(self._stored) if name.endswith(".integers"))

    def __len__(self) -> int:
        return sum(1 for _ in self)
