"""The process's default backend: what programs run on when none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmnb.errors import NoBackendError

if TYPE_CHECKING:
    from lmnb.backends.base import Backend

_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Run programs on `backend` from now on; None forgets it."""
    global _default
    _default = backend


def get_default_backend() -> Backend:
    """The default backend. NoBackendError, with advice, if none was set."""
    if _default is None:
        raise NoBackendError(
            "no model is loaded: run `%lmnb load` in a notebook, or lmnb.set_default_backend(lmnb.Runtime()) in Python"
        )
    return _default
