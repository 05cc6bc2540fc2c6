"""How two runs differ: their transcripts branch by branch and line by line, their variables, their token counts.

Branches are matched by their place in the tree of forks. Holds data only; `pictures.py` says who draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from lmnb.language.events import (
    BranchesJoined,
    BranchFinished,
    BranchOpened,
    ChoiceMade,
    GenFinished,
    GenStarted,
    ImageAdded,
    RoleClosed,
    RoleOpened,
    RunEvent,
    RunFinished,
    RunResumed,
    RunStarted,
    Status,
    TextAppended,
    TokensGenerated,
    VariableSet,
)
from lmnb.language.pictures import painter

_MOST_LINES = 2000  # that are matched one by one; above, a changed stretch is shown as one change


class Line(NamedTuple):
    """A line of a comparison: in both runs, in the first only, or in the second only."""

    sign: Literal[" ", "-", "+"]
    text: str


@dataclass
class Transcript:
    """What one branch says. Generated text stands in «guillemets», as everywhere in plain text."""

    label: str
    text: str = ""
    status: Status = "running"
    error: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    generating: bool = False

    def open_line(self) -> None:
        """Begin a line, unless one was just begun."""
        if self.text and not self.text.endswith("\n"):
            self.text += "\n"


@dataclass
class Summary:
    """One run in short."""

    id: str = ""
    program: str = ""
    model: str = ""
    status: Status = "running"
    seconds: float | None = None
    error: str | None = None
    reused: int = 0
    computed: int = 0
    generated: int = 0


@dataclass(frozen=True)
class BranchDiff:
    """One branch in both runs. `only` tells which run has it, if it is not both: 1 or 2."""

    label: str
    lines: tuple[Line, ...]
    only: int | None = None

    @property
    def same(self) -> bool:
        """Whether the branch says the same in both."""
        return self.only is None and all(line.sign == " " for line in self.lines)


@dataclass(frozen=True)
class Changed:
    """A variable with another value, or with one in one run only (None in the other)."""

    branch: str
    name: str
    first: str | None
    second: str | None


class RunDiff:
    """The comparison of two runs' events. Shows itself as text, and as HTML in a notebook."""

    def __init__(self, first: Sequence[RunEvent], second: Sequence[RunEvent]) -> None:
        one, two = _Reader(first), _Reader(second)
        self.summaries = (one.summary, two.summary)
        labels = list(dict.fromkeys([*one.by_label, *two.by_label]))
        self.branches = tuple(_branch(label, one.by_label.get(label), two.by_label.get(label)) for label in labels)
        self.variables = tuple(
            change for label in labels for change in _changes(label, one.by_label.get(label), two.by_label.get(label))
        )

    @property
    def same(self) -> bool:
        """Whether both runs said the same, and ended the same way. Tokens and times are not looked at."""
        one, two = self.summaries
        ends = (one.status, one.error) == (two.status, two.error)
        return ends and not self.variables and all(branch.same for branch in self.branches)

    def to_html(self) -> str:
        """The comparison as HTML that stands alone."""
        return painter().diff_html(self)

    def to_text(self) -> str:
        """The comparison as plain text."""
        return painter().diff_text(self)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()


class _Reader:
    """Reads the transcripts out of a run's events."""

    def __init__(self, events: Sequence[RunEvent]) -> None:
        self.summary = Summary()
        self.branches: dict[int, Transcript] = {0: Transcript("0")}
        for event in events:
            self._read(event)
        self.by_label: dict[str, Transcript] = {}
        for branch in self.branches.values():
            label, count = branch.label, 2
            while label in self.by_label:  # two forks of one branch number their branches alike
                label, count = f"{branch.label} ({count})", count + 1
            self.by_label[label] = branch

    def _read(self, event: RunEvent) -> None:
        if isinstance(event, RunStarted):
            self.summary.id, self.summary.program, self.summary.model = event.run, event.program, event.model
        elif isinstance(event, RunFinished):
            self.summary.status, self.summary.seconds, self.summary.error = event.status, event.seconds, event.error
        elif isinstance(event, BranchOpened):
            self.branches[event.branch] = Transcript(event.label)
        elif isinstance(event, BranchesJoined):
            branch = self.branches[event.parent]
            branch.open_line()
            branch.text += f"└ {len(event.branches)} joined ({event.mode.replace('_', ' ')})\n"
        elif isinstance(event, BranchFinished):
            self.branches[event.branch].status, self.branches[event.branch].error = event.status, event.error
        elif not isinstance(event, RunResumed):
            self._read_text(event, self.branches[event.branch])

    def _read_text(self, event: RunEvent, branch: Transcript) -> None:
        if isinstance(event, RoleOpened):
            branch.open_line()
            branch.text += f"{event.role}: "
        elif isinstance(event, RoleClosed):
            branch.open_line()
        elif isinstance(event, TextAppended):
            branch.text += event.text
        elif isinstance(event, ImageAdded):
            branch.text += f"{event.label[:-1]} #{event.digest}]"  # two images may look alike in numbers
        elif isinstance(event, GenStarted):
            branch.text += "«"
            branch.generating = True
        elif isinstance(event, (TokensGenerated, ChoiceMade)):
            branch.text += event.text
        elif isinstance(event, GenFinished):
            branch.text += "»" if branch.generating else ""
            branch.generating = False
            self.summary.reused += event.reused
            self.summary.computed += event.computed
            self.summary.generated += event.generated
        elif isinstance(event, VariableSet):
            branch.variables[event.name] = event.value


def _branch(label: str, first: Transcript | None, second: Transcript | None) -> BranchDiff:
    if first is None or second is None:
        there = first or second
        assert there is not None
        sign: Literal["-", "+"] = "+" if first is None else "-"
        return BranchDiff(label, tuple(Line(sign, text) for text in _lines(there)), 2 if first is None else 1)
    return BranchDiff(label, tuple(_compare(_lines(first), _lines(second))))


def _lines(branch: Transcript) -> list[str]:
    lines = branch.text.splitlines()
    if branch.error and branch.label != "0":
        lines.append(f"error: {branch.error}")
    return lines


def _compare(first: list[str], second: list[str]) -> list[Line]:
    """Both texts as one list of lines. The same beginning and end are found first: most of two runs is alike."""
    head = 0
    while head < min(len(first), len(second)) and first[head] == second[head]:
        head += 1
    tail = 0
    while tail < min(len(first), len(second)) - head and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    old, new = first[head : len(first) - tail], second[head : len(second) - tail]
    lines = [Line(" ", text) for text in first[:head]]
    if max(len(old), len(new)) > _MOST_LINES:
        blocks = [("replace", 0, len(old), 0, len(new))]
    else:
        blocks = list(SequenceMatcher(None, old, new, autojunk=False).get_opcodes())
    for kind, i, j, k, m in blocks:
        if kind == "equal":
            lines += [Line(" ", text) for text in old[i:j]]
        else:
            lines += [Line("-", text) for text in old[i:j]] + [Line("+", text) for text in new[k:m]]
    return lines + [Line(" ", text) for text in first[len(first) - tail :]]


def _changes(label: str, first: Transcript | None, second: Transcript | None) -> list[Changed]:
    one = first.variables if first else {}
    two = second.variables if second else {}
    names = dict.fromkeys([*one, *two])
    return [Changed(label, name, one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)]
