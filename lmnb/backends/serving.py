"""Who serves a backend over HTTP, for `Runtime.serve()`. Servers stand above backends, which know none: the package's
root, which knows both, says here what makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmnb.errors import ProgramError

Opener = Callable[..., Any]  # takes the runtime, and `host`, `port`, `api_key`; returns a running server

_opener: Opener | None = None


def serve_with(opener: Opener) -> None:
    """Let `opener` make servers from now on."""
    global _opener
    _opener = opener


def open_server(runtime: Any, **options: Any) -> Any:
    """A server of `runtime`."""
    if _opener is None:
        raise ProgramError("no server is known here that could serve this runtime; use lmnb.Server(runtime)")
    return _opener(runtime, **options)
