"""A working folder for libraries that ask for one when they are imported, though this process's was deleted.

torch, imported without one, later ends the process: what computes for it looks for itself by a path that is none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ALWAYS_THERE = Path(sys.executable).anchor or os.sep


@contextmanager
def some_working_folder() -> Iterator[None]:
    """While this is open there is one. Nothing changes where there is one anyway; no relative path means anything where
    there is none, so nobody else notices."""
    try:
        os.getcwd()
    except FileNotFoundError:
        deleted = os.open(".", os.O_RDONLY)
    else:
        yield
        return
    os.chdir(ALWAYS_THERE)
    try:
        yield
    finally:
        if os.getcwd() == ALWAYS_THERE:  # or somebody has gone to a folder of his own
            os.fchdir(deleted)
        os.close(deleted)
