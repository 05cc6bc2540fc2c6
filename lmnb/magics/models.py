"""The models a notebook has loaded: by name, with one default. Closes the engines that it opened, and no others.

Knows how to make a `Runtime` and how to set the default backend; nothing of cells.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from IPython.core.error import UsageError

from lmnb.backends.base import Backend
from lmnb.backends.runtime_options import RuntimeOptions
from lmnb.magics.options import suggest

EMBEDDED = "smollm2"  # the small model that comes in a wheel; what a newcomer's first cell runs on


@dataclass(frozen=True)
class LoadedModel:
    """A model that the magics opened, under the name users call it by."""

    name: str
    backend: Backend
    settings: RuntimeOptions

    @property
    def has_ended(self) -> bool:
        """Whether its engine died, or somebody shut it down."""
        return bool(getattr(self.backend, "closed", False))


class ModelShelf:
    """Models by name. `prepare` checks settings, and what it returns builds an engine; `get_default` and
    `set_default` are the language's default."""

    def __init__(
        self,
        prepare: Callable[[RuntimeOptions], Callable[[], Backend]],
        get_default: Callable[[], Backend | None],
        set_default: Callable[[Backend | None], None],
    ) -> None:
        self._prepare = prepare
        self._get_default = get_default
        self._set_default = set_default
        self._models: dict[str, LoadedModel] = {}

    def __iter__(self) -> Iterator[LoadedModel]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    def load(
        self, settings: RuntimeOptions, name: str | None = None, *, make_default: bool = True
    ) -> tuple[LoadedModel, bool]:
        """Load a model. Returns it, and whether it was loaded just now.

        Asking again for the same model is free; other settings under the same name replace it, and so it is with
        a model whose engine has ended. The one to be replaced is unloaded when all is checked that needs no weights.
        """
        key = name or model_name(str(settings.model))
        present = self._models.get(key)
        fresh = present is None or present.settings != settings or present.has_ended
        if fresh:
            open_model = self._prepare(settings)
            if present is not None:
                self.unload(key)  # first: two copies may not fit the memory
            present = LoadedModel(key, open_model(), settings)
            self._models[key] = present
        assert present is not None
        if make_default:
            self._set_default(present.backend)
        return present, fresh

    def find(self, name: str) -> LoadedModel | None:
        return self._models.get(name)

    def default(self) -> Backend | None:
        return self._get_default()

    def require(self, name: str) -> LoadedModel:
        """The loaded model of that name; UsageError with the nearest name otherwise."""
        found = self._models.get(name)
        if found is None:
            loaded = ", ".join(self._models) or "none"
            raise UsageError(f"no model named {name!r} is loaded (loaded: {loaded}).{suggest(name, self._models)}")
        return found

    def unload(self, name: str) -> None:
        """Close the model's engine and forget it; the default, if it was this one, becomes the last one left."""
        model = self.require(name)
        del self._models[name]
        if self._get_default() is model.backend:
            left = list(self._models.values())
            self._set_default(left[-1].backend if left else None)
        model.backend.shutdown()

    def close(self) -> None:
        """Close every engine that was opened here."""
        for name in list(self._models):
            self.unload(name)


def model_name(model: str) -> str:
    """The short name of a model: the last part of its path or id."""
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name or model


def is_path(model: str) -> bool:
    """Whether `model` names files on this machine."""
    return os.path.exists(os.path.expanduser(model))
