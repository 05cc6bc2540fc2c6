"""The notebook extension: `%load_ext lmnb` gives `%%lmprog`, `%lmnb` and the language's names.

Imported only by IPython. `lmnb.load_ipython_extension` leads here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmnb.backends.base import Backend
    from lmnb.magics.models import Settings
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

    if shell in _sessions:
        return
    session = _sessions[shell] = Session(shell, ModelShelf(_open_runtime, get_default_backend, set_default_backend))
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


def _open_runtime(settings: Settings) -> Backend:
    from lmnb.backends.local import Runtime

    return Runtime(settings.model, **settings.given())
