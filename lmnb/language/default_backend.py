"""Which backend a program runs on when it is not told, and the calls that go to that backend."""

from __future__ import annotations

from typing import Any

from lmnb.backends.base import Backend
from lmnb.errors import ArgumentError, NoBackendError
from lmnb.language.current_run import current_run
from lmnb.runtime.argument_checks import shown

_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Make `backend` the one that programs run on, in this process; None for none."""
    global _default
    if backend is not None:
        checked_backend(backend)
    _default = backend


def get_default_backend() -> Backend | None:
    """The default backend, if there is one."""
    return _default


def resolve_backend(backend: Backend | None = None) -> Backend:
    """`backend`, else that of the run whose body is executing, else the default. NoBackendError if there is none."""
    if backend is not None:
        return checked_backend(backend)
    run = current_run()
    if run is not None:
        return run.backend
    if _default is None:
        raise NoBackendError(
            "no model is loaded: call lmnb.set_default_backend(lmnb.Runtime()), or use %lmnb load in a notebook"
        )
    return _default


def flush_cache(backend: Backend | None = None) -> bool:
    """Forget cached prompts. False if there is no backend, or if it is busy and did nothing."""
    chosen = _default if backend is None else checked_backend(backend)
    return False if chosen is None else chosen.flush_cache()


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """What the backend tells about itself: model, settings, counters."""
    return resolve_backend(backend).get_server_info()


def checked_backend(backend: Backend) -> Backend:
    """`backend`, or ArgumentError if it is none."""
    if isinstance(backend, type):
        raise ArgumentError(f"{backend.__name__} is the class of a backend; make one of it: {backend.__name__}(...)")
    if not callable(getattr(backend, "new_context", None)):
        raise ArgumentError(f"{shown(backend)} is not a backend; give one, such as lmnb.Runtime() or lmnb.OpenAI(...)")
    return backend
