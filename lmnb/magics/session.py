"""What one shell has with lmnb: its loaded models, its background runs, the names it was given, its current cell."""

from __future__ import annotations

import atexit
import time
from typing import Any

from IPython.core.error import UsageError

from lmnb.backends.base import Backend
from lmnb.backends.runtime_options import RuntimeOptions
from lmnb.language.interrupts import calm_interrupts
from lmnb.language.ledger import Ledger
from lmnb.magics.body import CellText, find_offset
from lmnb.magics.completer import CellCompleter
from lmnb.magics.models import EMBEDDED, LoadedModel, ModelShelf, is_path
from lmnb.magics.namespace import PushedNames
from lmnb.magics.options import suggest
from lmnb.magics.report import say
from lmnb.magics.runner import BackgroundRuns
from lmnb.widgets import prefer_mode
from lmnb.widgets.recent import recent_runs


class Session:
    """Lives from `%load_ext lmnb` to `%unload_ext lmnb` or the kernel's end."""

    def __init__(self, shell: Any, models: ModelShelf) -> None:
        self.shell = shell
        self.models = models
        self.background = BackgroundRuns()
        self.names = PushedNames(shell)
        self.ledger = Ledger(lambda: str(self.cell_number))
        self._completer: CellCompleter | None = None
        self._raw_cell = ""

    def open(self, completer: CellCompleter) -> None:
        """Give the user the language's names and their completion, and follow which cell runs."""
        self.names.push()
        completer.open()
        self._completer = completer
        self.ledger.open()
        self.shell.events.register("pre_run_cell", self._remember_cell)
        atexit.register(self.close)

    def close(self) -> None:
        """Stop what runs, close the engines opened here, take back the names. Safe to repeat."""
        atexit.unregister(self.close)
        self.background.cancel()
        self.ledger.close()
        self.models.close()
        self.names.drop()
        if self._completer is not None:
            self._completer.close()
            self._completer = None
        prefer_mode(None)
        recent_runs.clear()
        if self._remember_cell in self.shell.events.callbacks["pre_run_cell"]:
            self.shell.events.unregister("pre_run_cell", self._remember_cell)

    def _remember_cell(self, info: Any) -> None:
        self._raw_cell = info.raw_cell

    @property
    def cell_number(self) -> int:
        """The running cell's number, as in `In [3]`. IPython 9 counts on before a cell runs, older ones after it."""
        return int(self.shell.displayhook.prompt_count)

    def cell_text(self, magic_line: str, body: str) -> CellText:
        """The body's place in the running cell, registered with the shell so that tracebacks show the cell's lines."""
        offset = find_offset(self._raw_cell, body)
        known = bool(body.strip()) and body.strip("\n") in self._raw_cell
        cell = self._raw_cell if known else f"{magic_line}\n{body}"
        filename = self.shell.compile.cache(cell, self.cell_number, raw_code=cell)
        return CellText(body, offset, filename, f"Cell In[{self.cell_number}]")

    @calm_interrupts
    def load(self, settings: RuntimeOptions, name: str | None = None, *, make_default: bool = True) -> LoadedModel:
        """Load a model, with a line that says so; nothing is said of one that is loaded already. One that was unloaded
        for a load that failed is named."""
        start = time.perf_counter()
        before = {model.name for model in self.models}
        try:
            model, fresh = self.models.load(settings, name, make_default=make_default)
        except BaseException:
            for gone in before - {model.name for model in self.models}:
                say(f"{gone} was unloaded to make room, before this failed. `%lmnb load` loads it again.")
            raise
        if fresh:
            say(f"Loaded {model.name} in {time.perf_counter() - start:.1f} s.")
        return model

    def backend(self, model: str | None) -> Backend:
        """The backend a cell asks for: by a loaded model's name, a variable that holds a backend, or a path."""
        if model is None:
            return self.models.default() or self._load_embedded()
        loaded = self.models.find(model)
        if loaded is not None:
            return loaded.backend
        value = self.shell.user_ns.get(model)
        if hasattr(value, "new_context"):
            backend: Backend = value
            return backend
        if is_path(model) or model == EMBEDDED:
            return self.load(RuntimeOptions(model), make_default=self.models.default() is None).backend
        known = [one.name for one in self.models] + [EMBEDDED]
        raise UsageError(
            f"no model named {model!r} is loaded, and there is no such file.{suggest(model, known)} "
            f"Load one with `%lmnb load {model}`."
        )

    def _load_embedded(self) -> Backend:
        say("No model is loaded yet: loading the small one that comes with lmnb. `%lmnb load MODEL` picks another.")
        return self.load(RuntimeOptions(EMBEDDED)).backend
