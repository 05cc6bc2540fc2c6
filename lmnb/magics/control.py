"""`%lmnb`: load and unload models, see what the engine does, stop and tidy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from traitlets import CaselessStrEnum, Dict, Float, List, Unicode, observe

from lmnb.backends.prompt_cache import PromptCache
from lmnb.backends.runtime_options import RuntimeOptions, add_arguments, usage
from lmnb.language import ProgramState, cancel_runs, runs_at_work
from lmnb.magics import options
from lmnb.magics.ledger_table import ledger_text
from lmnb.magics.models import EMBEDDED, LoadedModel
from lmnb.magics.report import say, status_line
from lmnb.magics.session import Session
from lmnb.widgets import CacheSource, CacheView, freeze_outputs, prefer_mode

MAGIC = "%lmnb"
HELP = f"""\
%lmnb load [MODEL] [options]   load a model and use it from now on; without MODEL, the one that comes with lmnb
    MODEL                      a folder of weights, a GGUF file, or a hub id
    --name NAME                call it NAME, for `%%lmprog -m NAME` (default: the last part of MODEL)
{usage(4, 31, 112)}
%lmnb status                   models, memory, what runs, how much of the prompts was reused
%lmnb tree [NAME]              the cache tree, live (--view html: a picture of now)
%lmnb cancel                   stop all runs that still generate, in the background or left behind
%lmnb pin STATE [NAME]         keep a state's prompt cached, however full the pool gets
%lmnb unpin [STATE] [NAME]     let it go again (without STATE: all that is pinned)
%lmnb flush [NAME]             forget cached prompts that are not pinned
%lmnb unload [NAME]            close a model's engine and free its memory (without NAME: all)
%lmnb ledger                   tokens and seconds by cell, what reuse saved, and money where prices are set
    --clear                    forget them after showing them
%lmnb freeze                   end the live views and leave their pictures; then save the notebook
%lmnb help                     this text

%%lmprog? explains prompt programs. Settings (%config Lmnb lists them):
%config Lmnb.view = "html"                           how runs are shown: widget, html, text, off or auto
%config Lmnb.prices = {{"gpt-4o-mini": [0.15, 0.6]}}   money for a million prompt and generated tokens"""


@magics_class
class Lmnb(Magics):  # type: ignore[misc]  # IPython's class is untyped
    """The line magic, and what `%config Lmnb` sets."""

    view = CaselessStrEnum(
        ["auto", *options.VIEWS], default_value="auto", help="How runs are shown; auto detects what the front end can."
    ).tag(config=True)
    prices = Dict(
        key_trait=Unicode(),
        value_trait=List(Float(min=0.0), minlen=2, maxlen=3),
        help="What %lmnb ledger counts as money, by the model's name: the price of a million prompt tokens, of a "
        "million generated ones and, where it differs, of a million prompt tokens that were cached.",
    ).tag(config=True)

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell)
        self.session = session
        self._trees: WeakKeyDictionary[Any, WeakSet[CacheView]] = WeakKeyDictionary()  # by backend: its cache's views
        self.commands: dict[str, Callable[[list[str]], None]] = {
            "load": self.load,
            "status": self.status,
            "tree": self.tree,
            "cancel": self.cancel,
            "pin": self.pin,
            "unpin": self.unpin,
            "flush": self.flush,
            "unload": self.unload,
            "ledger": self.ledger,
            "freeze": self.freeze,
            "help": self.help,
        }

    @line_magic  # type: ignore[untyped-decorator]
    def lmnb(self, line: str) -> None:
        """Load models and look after the engine: `%lmnb help` lists the commands.

        ::

            %lmnb load                     the model that comes with lmnb
            %lmnb load /path/to/model      a folder of weights or a GGUF file
            %lmnb status
            %lmnb tree
            %lmnb cancel
            %lmnb pin s
            %lmnb flush
            %lmnb unload
            %lmnb ledger
            %lmnb freeze
        """
        words = options.split(MAGIC, line)
        command, rest = (words[0], words[1:]) if words else ("help", [])
        if command not in self.commands:
            near = options.suggest(command, self.commands)
            raise UsageError(f"{MAGIC} has no command {command!r}.{near} `%lmnb help` lists them.")
        self.commands[command](rest)

    def load(self, words: list[str]) -> None:
        parser = self._parser("load")
        parser.add_argument("model", nargs="?", default=EMBEDDED)
        parser.add_argument("--name")
        add_arguments(parser)
        chosen = vars(parser.parse(words))
        name = chosen.pop("name")
        model = self.session.load(RuntimeOptions(**chosen), name)
        say(status_line(model, default=True))

    def status(self, words: list[str]) -> None:
        self._parser("status").parse(words)
        models = list(self.session.models)
        default = self.session.models.default()
        if not models and default is None:
            say("No model is loaded. `%lmnb load` loads the one that comes with lmnb.")
        for model in models:
            say(status_line(model, default=model.backend is default))
        if default is not None and all(model.backend is not default for model in models):
            say(f"{default.name} (default; set by your own code)")
        running = runs_at_work()
        if running:
            say(f"{_runs(len(running))} at work. `%lmnb cancel` stops {'them' if len(running) > 1 else 'it'}.")

    def tree(self, words: list[str]) -> None:
        parser = self._parser("tree")
        parser.add_argument("name", nargs="?")
        parser.add_argument("--view", choices=options.VIEWS)
        chosen = parser.parse(words)
        backend = self.session.backend(chosen.name)
        if not hasattr(backend, "cache_events"):
            raise UsageError(
                f"{MAGIC} tree: {backend.name} has no cache of ours to show; load a model with %lmnb load."
            )
        view = CacheView(cast(CacheSource, backend), self.mode(chosen.view))
        view.display()
        self._trees.setdefault(backend, WeakSet()).add(view)

    @observe("view")
    def _prefer(self, change: Any) -> None:
        """What is set here holds for views that no magic makes, too."""
        prefer_mode(None if change["new"] == "auto" else change["new"])

    def mode(self, chosen: str | None) -> str | None:
        """How to show things: what a cell chose, else `%config Lmnb.view`, else None for the front end's best."""
        return chosen or (None if self.view == "auto" else str(self.view))

    def cancel(self, words: list[str]) -> None:
        self._parser("cancel").parse(words)
        count = cancel_runs()
        say(f"Cancelled {_runs(count)}." if count else "No run to cancel.")

    def pin(self, words: list[str]) -> None:
        parser = self._parser("pin")
        parser.add_argument("state")
        parser.add_argument("name", nargs="?")
        chosen = parser.parse(words)
        cache = self._cache("pin", chosen.name)
        pin = cache.pin(self._state("pin", chosen.state))
        say(f"{chosen.state}: {pin.num_tokens:,} tokens stay cached until `%lmnb unpin {chosen.state}`.")

    def unpin(self, words: list[str]) -> None:
        parser = self._parser("unpin")
        parser.add_argument("state", nargs="?")
        parser.add_argument("name", nargs="?")
        chosen = parser.parse(words)
        cache = self._cache("unpin", chosen.name)
        count = cache.unpin(None if chosen.state is None else self._state("unpin", chosen.state))
        say(f"{count} pin{'s' if count != 1 else ''} taken back." if count else "Nothing was pinned.")

    def flush(self, words: list[str]) -> None:
        for model in self._named("flush", words):
            if model.backend.flush_cache():
                kept = getattr(model.backend, "status", None)
                pinned = kept().pinned_tokens if callable(kept) else 0
                rest = f"; {pinned:,} pinned tokens stay (`%lmnb unpin`)" if pinned else ""
                say(f"{model.name}: cached prompts forgotten{rest}.")
            else:
                say(f"{model.name}: busy, so nothing was done. Wait for the run to end, or `%lmnb cancel`.")

    def unload(self, words: list[str]) -> None:
        models = self.session.models
        for model in self._named("unload", words):
            was_default = models.default() is model.backend
            models.unload(model.name)
            for view in self._trees.pop(model.backend, ()):
                view.say_unloaded()
            left = next((one.name for one in models if one.backend is models.default()), None)
            now = f" The default is now {left}." if was_default and left is not None else ""
            say(f"{model.name}: unloaded, its memory is free again.{now}")

    def ledger(self, words: list[str]) -> None:
        parser = self._parser("ledger")
        parser.add_argument("--clear", action="store_true")
        clear = parser.parse(words).clear
        say(ledger_text(self.session.ledger, self.prices))
        if clear:
            self.session.ledger.clear()

    def freeze(self, words: list[str]) -> None:
        self._parser("freeze").parse(words)
        count = freeze_outputs()
        views = f"{count} live view{'s were' if count != 1 else ' was'} replaced by a picture"
        say(f"{views}. Save the notebook to keep it so." if count else "No live view to replace.")

    def help(self, words: list[str]) -> None:
        self._parser("help").parse(words)
        say(HELP)

    def _cache(self, command: str, name: str | None) -> PromptCache:
        """The cache of a model that has one of ours."""
        backend = self.session.backend(name)
        cache = getattr(backend, "cache", None)
        if not isinstance(cache, PromptCache):
            raise UsageError(f"{MAGIC} {command}: {backend.name} has no cache of ours; load a model with %lmnb load.")
        return cache

    def _state(self, command: str, name: str) -> ProgramState:
        """The state that a variable holds."""
        value = self.shell.user_ns.get(name)
        if not isinstance(value, ProgramState):
            states = [one for one, each in self.shell.user_ns.items() if isinstance(each, ProgramState)]
            hint = options.suggest(name, states)
            raise UsageError(f"{MAGIC} {command}: {name!r} is not a variable that holds a state.{hint}")
        return value

    def _parser(self, command: str) -> options.LineParser:
        return options.LineParser(f"{MAGIC} {command}")

    def _named(self, command: str, words: list[str]) -> list[LoadedModel]:
        """The model that `words` name, or all; says so if there is none."""
        parser = self._parser(command)
        parser.add_argument("name", nargs="?")
        name = parser.parse(words).name
        models = [self.session.models.require(name)] if name is not None else list(self.session.models)
        if not models:
            say("No model is loaded.")
        return models


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"
