"""Imports of large packages that an interrupt cannot tear: they go on in a thread while the caller waits.

torch, interrupted half-way, cannot be imported again in the same process: its compiled parts are there already.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from lmnb.runtime.apart import apart
from lmnb.runtime.process_end import awaited, ending_error
from lmnb.runtime.working_folder import some_working_folder


def import_whole(*modules: str) -> None:
    """Import `modules`, in this order. A KeyboardInterrupt ends the wait and not the import, so that asking again
    goes on where that has got to. Raises what the import raises."""
    if all(_is_imported(module) for module in modules):
        return
    if threading.current_thread() is not threading.main_thread():  # only the main thread is interrupted
        with awaited():
            _import(modules)
        return
    apart(lambda: _import(modules), "lmnb-import")


def _is_imported(module: str) -> bool:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def _import(modules: Sequence[str]) -> None:
    try:
        import_module("concurrent.futures.thread")  # torch's import would break off at it
    except RuntimeError as error:  # the main thread has ended
        raise ending_error() from error
    with some_working_folder():
        for module in modules:
            import_module(module)
