"""A run as it is saved: its events, in a JSON document with a version. Needs no model to be read, shown or compared.

The document is `{"format": "lmnb-run", "version": 1, "lmnb": "0.1.0", "events": [...]}`; `run_schema` describes it.
Draws nothing: pictures come from `pictures.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lmnb.errors import ArgumentError
from lmnb.language.event_schema import MisfitError, decode_event, encode_event, event_schema
from lmnb.language.events import (
    BranchesJoined,
    BranchOpened,
    ChoiceMade,
    GenFinished,
    GenStarted,
    RunEvent,
    RunFinished,
    RunResumed,
    RunStarted,
    Status,
    TokensGenerated,
    well_formed_event,
)
from lmnb.language.pictures import painter
from lmnb.language.redaction import Redactor
from lmnb.language.run_diff import RunDiff
from lmnb.runtime.argument_checks import current_folder

FORMAT = "lmnb-run"
VERSION = 1  # raised when an older lmnb could not read what a newer one writes


class SavedRun:
    """A run that was: read-only, complete or up to where it was when it was saved. A notebook shows it as it ran."""

    def __init__(self, events: Iterable[RunEvent]) -> None:
        """ArgumentError unless the events are those of one run, in order."""
        self.events = tuple(map(well_formed_event, events))
        _check_order(self.events)
        start = self.events[0]
        assert isinstance(start, RunStarted)
        self.id = start.run
        self.program = start.program
        self.model = start.model
        self.cell = start.cell

    @classmethod
    def of(cls, events: Iterable[RunEvent]) -> SavedRun:
        """A run from its live events, without the secrets that the environment holds."""
        return cls(Redactor().events(list(events)))

    @classmethod
    def from_json(cls, text: str) -> SavedRun:
        """The run that `to_json` wrote. ArgumentError for anything else."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ArgumentError(f"this is no saved run: it is not JSON ({error})") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ArgumentError('this is no saved run: write one with run.save("run.json") or run.to_json()')
        number = document.get("version")
        if not isinstance(number, int) or not 1 <= number <= VERSION:
            raise ArgumentError(f"this run was saved in version {number!r} of the format; this lmnb reads {VERSION}")
        messages = document.get("events")
        try:
            return cls(decode_event(message) for message in (messages if isinstance(messages, list) else []))
        except MisfitError as error:
            raise ArgumentError(f"this saved run is damaged: {error}") from None

    @property
    def status(self) -> Status:
        """How the run ended; "running" if it was saved before its end."""
        last = self.events[-1]
        return last.status if isinstance(last, RunFinished) else "running"

    def to_json(self) -> str:
        """The run as a JSON document, one event a line."""
        head = {"format": FORMAT, "version": VERSION, "lmnb": version("lmnb")}
        lines = ",\n".join(json.dumps(encode_event(e), ensure_ascii=False, allow_nan=False) for e in self.events)
        return f'{json.dumps(head)[:-1]}, "events": [\n{lines}\n]}}\n'

    def to_html(self) -> str:
        """The run's view as one page that needs neither kernel nor network."""
        return painter().run_html(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the run to `path`, as its ending says: .json (to be replayed) or .html (to be read). The path.
        ArgumentError if it cannot be written there."""
        target = Path(os.path.expanduser(path))
        writers: dict[str, Callable[[], str]] = {".json": self.to_json, ".html": self.to_html}
        writer = writers.get(target.suffix.lower())
        if writer is None:
            raise ArgumentError(f"a run is saved as .json or .html, not as {target.name!r}")
        try:
            target.write_text(writer(), encoding="utf-8")
        except OSError as error:
            raise ArgumentError(
                f"the run cannot be saved to {str(target)!r}: {error.strerror or error}; save it to another folder"
            ) from None
        return target

    def diff(self, other: Any) -> RunDiff:
        """How `other` (a saved run, a run or a state, which is waited for) differs from this one."""
        return RunDiff(self.events, saved(other).events)

    # What a view needs of a run

    def subscribe(self, callback: Callable[[RunEvent], None]) -> Callable[[], None]:
        """Call `callback` with every event, in order, now."""
        for event in self.events:
            callback(event)
        return lambda: None

    def cancel(self) -> None:
        """Nothing: the run is over."""

    def __repr__(self) -> str:
        return f"SavedRun({self.id!r}, {self.program!r}, {self.status}, {len(self.events):,} events)"

    def _ipython_display_(self) -> None:
        painter().show_run(self)

    def _repr_html_(self) -> str:
        """For notebooks that are not IPython's."""
        return painter().run_picture(self)


def saved(run: Any) -> SavedRun:
    """`run` as a saved one: a run up to now, or a state's run when what the state was asked for is there, as for every
    reader of it. ArgumentError for anything else."""
    state, run = run, getattr(run, "run", run)
    if isinstance(run, SavedRun):
        return run
    if not isinstance(getattr(run, "events", None), tuple):
        raise ArgumentError(f"{run!r} is no run: give a run, a state, or what lmnb.replay(path) returns")
    if state is not run:
        state.wait_drained()
        while not run.is_open and not run.cancelled and not run.wait(0.1):
            pass  # a stopped run is not waited for: its backend may not let go
    found: SavedRun = run.saved()
    return found


def replay(path: str | os.PathLike[str]) -> SavedRun:
    """The run saved at `path`: a cell that ends with it shows it, and `.diff(other)` compares two. Needs no model.

    ArgumentError if the file cannot be read, or is not a saved run.
    """
    target = os.path.expanduser(os.fspath(path))
    try:
        text = Path(target).read_text(encoding="utf-8")
    except OSError as error:
        where = "" if os.path.isabs(target) else f" below {current_folder()!r}"
        raise ArgumentError(
            f"the saved run {target!r}{where} cannot be read: {error.strerror or error}; check the path"
        ) from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{target!r} is no saved run: it is not text in UTF-8") from None
    return SavedRun.from_json(text)


@lru_cache(maxsize=1)
def run_schema() -> dict[str, Any]:
    """JSON Schema of a saved run."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A saved run of lmnb",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            "lmnb": {"type": "string"},
            "events": {"type": "array", "items": event_schema(), "minItems": 1},
        },
        "required": ["format", "version", "events"],
    }


def _check_order(events: Sequence[RunEvent]) -> None:
    """ArgumentError where a view could not follow: it trusts that each event fits those before it."""
    if not events or not isinstance(events[0], RunStarted):
        raise ArgumentError("this saved run is damaged: it does not begin with the start of a run")
    branches = {0}
    generating: set[int] = set()  # branches that have begun a generation
    for number, event in enumerate(events[1:], 1):
        was_over = isinstance(events[number - 1], RunFinished)
        if isinstance(event, RunStarted) or was_over != isinstance(event, RunResumed):
            raise ArgumentError(f"this saved run is damaged: its event {number} begins or ends the run again")
        place = getattr(event, "parent", None) if isinstance(event, (BranchOpened, BranchesJoined)) else None
        place = getattr(event, "branch", 0) if place is None else place
        if place not in branches or (isinstance(event, BranchOpened) and event.branch in branches):
            raise ArgumentError(f"this saved run is damaged: its event {number} is of a branch that is not there")
        if isinstance(event, BranchOpened):
            branches.add(event.branch)
        elif isinstance(event, GenStarted):
            generating.add(event.branch)
        elif isinstance(event, (TokensGenerated, ChoiceMade, GenFinished)) and event.branch not in generating:
            raise ArgumentError(f"this saved run is damaged: its event {number} is of no generation")
