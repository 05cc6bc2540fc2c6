"""Packages that only some backends need: loaded when they are used, missed with the command that brings them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lmnb.errors import MissingPackageError


def require(name: str, what: str, install: str = "'lmnb[api]'") -> Any:
    """The module `name`. MissingPackageError, with what to install, if it is not there."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} needs the package {name!r}, which cannot be loaded ({error}); run: pip install {install}"
        ) from error
