"""The notebook extension: `%load_ext lmnb` gives `%%lmprog`, `%lmnb` and the language's names.

Imported only by IPython. `lmnb.load_ipython_extension` leads here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmnb.backends.base import Backend
    from lmnb.backends.runtime_options import RuntimeOptions
    from lmnb.magics.session import Session

_sessions: dict[Any, Session] = {}  # by shell; a kernel has one


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, and put the language's names where the user has none of their own. Safe to repeat."""
    from lmnb.language import get_default_backend, set_default_backend
    from lmnb.magics.completer import CellCompleter
    from lmnb.magics.control import HELP, Lmnb
    from lmnb.magics.lmprog import LmprogMagics, option_parser
    from lmnb.magics.models import ModelShelf
    from lmnb.magics.session import Session
    from lmnb.widgets.shell_channel import mend_shell_channel

    if shell in _sessions:
        return
    mend_shell_channel()
    session = _sessions[shell] = Session(
        shell, ModelShelf(partial(_prepare_runtime, shell), get_default_backend, set_default_backend)
    )
    session.open(CellCompleter(shell, session.models, option_parser().option_names(), HELP))
    control = Lmnb(shell, session)
    shell.register_magics(control, LmprogMagics(shell, session, control))


def unload_ipython_extension(shell: Any) -> None:
    """Stop background runs, close the engines that the magics opened, and take back magics and names."""
    session = _sessions.pop(shell, None)
    if session is None:
        return
    session.close()
    manager = shell.magics_manager
    manager.magics["line"].pop("lmnb", None)
    manager.magics["cell"].pop("lmprog", None)
    for name in ("Lmnb", "LmprogMagics"):
        magics = manager.registry.pop(name, None)
        if magics in shell.configurables:
            shell.configurables.remove(magics)


def _prepare_runtime(shell: Any, settings: RuntimeOptions) -> Callable[[], Backend]:
    from lmnb.backends.local import Runtime
    from lmnb.magics.load_bar import LoadBar

    load_bar = LoadBar(shell)
    open_runtime = Runtime.prepare(**replace(settings, on_progress=load_bar).as_arguments())

    def open_and_tidy() -> Backend:
        try:
            return open_runtime()
        finally:
            load_bar.close()

    return open_and_tidy
