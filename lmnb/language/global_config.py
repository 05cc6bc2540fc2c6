"""`global_config`: SGLang's process-wide switches, as far as they mean something here."""

from __future__ import annotations

from typing import Any

from lmnb.backends.base import Backend
from lmnb.errors import ArgumentError
from lmnb.language.default_backend import get_default_backend, set_default_backend

_FIXED = {
    "verbosity": (0, "subscribe to runs with lmnb.on_run, or show them with %%lmprog"),
    "skip_special_tokens_in_output": (True, "state.tokens() shows them"),
    "spaces_between_special_tokens_in_out": (True, "state.tokens() shows what stands between tokens"),
}


class GlobalConfig:
    """Switches. One that cannot be honoured raises ArgumentError when it is set to something else.

    `enable_precache_with_tracing`: batches compute what all rows begin with once, before them.
    `enable_parallel_encoding`: accepted; joins are exact unless a join asks for `approximate=True`.
    """

    def __init__(self) -> None:
        self.enable_precache_with_tracing = True
        self.enable_parallel_encoding = True
        self.verbosity = 0
        self.skip_special_tokens_in_output = True
        self.spaces_between_special_tokens_in_out = True

    @property
    def default_backend(self) -> Backend | None:
        """What `set_default_backend` sets."""
        return get_default_backend()

    @default_backend.setter
    def default_backend(self, backend: Backend | None) -> None:
        set_default_backend(backend)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and value != _FIXED[name][0]:
            raise ArgumentError(f"global_config.{name} is always {_FIXED[name][0]!r}; instead, {_FIXED[name][1]}")
        known = ("enable_precache_with_tracing", "enable_parallel_encoding", "default_backend", *_FIXED)
        if name not in known:
            raise ArgumentError(f"global_config has no {name!r}; it has: {', '.join(known)}")
        super().__setattr__(name, value)


global_config = GlobalConfig()
