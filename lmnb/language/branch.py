"""One branch of a run: its number, its place and who speaks in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmnb.backends.base import CancelToken, Owner
from lmnb.language.events import BranchOpened, Status
from lmnb.language.source import source_text
from lmnb.language.variables import Failure

if TYPE_CHECKING:
    from lmnb.language.run import Run


@dataclass(eq=False)
class Branch:
    """A branch. `cancel` stops it and what is below it."""

    run: Run
    id: int
    parent: Branch | None
    label: str
    program: str
    cancel: CancelToken
    row: int | None = None
    status: Status = "done"  # as it will be told when the branch ends
    error: BaseException | None = None
    closed: bool = False  # its end was published
    opened: BranchOpened | None = None
    num_generated: int = 0  # generations that have begun here
    num_active: int = 0  # streams at work here and below; the run's lock guards it
    stopped: Failure | None = None  # why the body that speaks here has ended before its time

    def why_stopped(self) -> Failure | None:
        """Why the body here, or the nearest one around it that has an answer, has ended before its time."""
        return next((branch.stopped for branch in self.path() if branch.stopped is not None), None)

    def path(self) -> Iterator[Branch]:
        """This branch and those above it, up to the root."""
        branch: Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    def owner(self, var: str | None, line: int | None) -> Owner:
        """Who asks for tokens, when the step at `line` does."""
        return Owner(
            run=self.run.id,
            program=self.program,
            cell=self.run.cell,
            branch=self.label,
            row=self.row,
            var=var,
            line=line,
            source=source_text(line),
        )


def linked_token(parent: CancelToken) -> CancelToken:
    """A token of its own that the parent's cancel also switches."""
    token = CancelToken()
    parent.on_cancel(token.cancel)
    return token
