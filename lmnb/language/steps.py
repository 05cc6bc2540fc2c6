"""What a stream does, one step at a time. Steps are made where a program appends, and run on the background loop.

A step either runs, or is skipped because of an earlier failure; either way its variables end, so nobody waits forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from lmnb.backends.base import ConcatenatingContext
from lmnb.backends.images import Picture
from lmnb.backends.turns import Turns
from lmnb.errors import ProgramError
from lmnb.language.branch import Branch
from lmnb.language.events import BranchesJoined, VariableSet
from lmnb.language.messages import Piece
from lmnb.language.stream import Stream
from lmnb.language.variables import Failure, Variable

if TYPE_CHECKING:
    from lmnb.language.state import ProgramState


class Step:
    """A step that does nothing; others derive from it. `where` names it in errors."""

    announces = False  # whether a run that so far was too small to show is shown from this step on

    def __init__(self, where: str = "a step", *variables: Variable) -> None:
        self.where = where
        self.variables = variables
        self.state: ProgramState | None = None  # what it was appended to, where that matters later
        self.num_reads = 0  # of that state, when the step was appended

    def bind(self, stream: Stream) -> None:
        """Take from the stream what must be fixed at submit time."""

    async def run(self, stream: Stream) -> None:
        """Do it."""

    def again(self, renewed: Mapping[Variable, Variable]) -> Step | None:
        """A step that does the same in another branch, with `renewed` in place of variables; None if there is none."""
        return None

    async def skip(self, stream: Stream, failure: Failure) -> None:
        """Do not; tell the readers why."""
        for variable in self.variables:
            variable.fail(failure)


class TextStep(Step):
    """Adds constant text."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(where)
        self.text = text

    async def run(self, stream: Stream) -> None:
        """Add it."""
        await stream.read_in(self.text)

    def again(self, renewed: Mapping[Variable, Variable]) -> Step:
        """The same text."""
        return TextStep(self.where, self.text)


class ImageStep(Step):
    """Adds an image or a video."""

    def __init__(self, where: str, picture: Picture) -> None:
        super().__init__(where)
        self.picture = picture
        _ = picture.preview  # made here, in the program's thread, and kept: views are told of it

    async def run(self, stream: Stream) -> None:
        """Add it."""
        stream.append_image(self.picture)

    def again(self, renewed: Mapping[Variable, Variable]) -> Step:
        """The same image."""
        return ImageStep(self.where, self.picture)


class RoleStep(Step):
    """Opens a role, or closes it (`role=None`)."""

    def __init__(self, where: str, role: str | None) -> None:
        super().__init__(where)
        self.role = role

    async def run(self, stream: Stream) -> None:
        """Open or close."""
        if self.role is not None:
            stream.begin_role(self.role)
        else:
            stream.end_role()

    def again(self, renewed: Mapping[Variable, Variable]) -> Step:
        """The same role, or its end."""
        return RoleStep(self.where, self.role)


class ScopeStep(Step):
    """Starts to collect text into a variable, or ends it."""

    def __init__(self, where: str, variable: Variable, *, begin: bool) -> None:
        super().__init__(where, variable)
        self.begin = begin

    async def run(self, stream: Stream) -> None:
        """Start, or give the variable its text."""
        (variable,) = self.variables
        if self.begin:
            stream.scopes.append(variable)
            return
        stream.scopes.remove(variable)
        set_variable(stream, variable, "".join(chunk.text for chunk in variable.chunks))


class SetStep(Step):
    """Tells views of variables that have their values already."""

    async def skip(self, stream: Stream, failure: Failure) -> None:
        """The values are there in spite of the failure."""

    async def run(self, stream: Stream) -> None:
        """Tell."""
        for variable in self.variables:
            stream.publish(told(stream, variable, variable.value))

    def again(self, renewed: Mapping[Variable, Variable]) -> Step:
        """The same values."""
        return SetStep(self.where, *self.variables)


class ForkStep(Step):
    """Starts children with all that the stream has said; `offsets` moves the positions of what they say."""

    def __init__(
        self, where: str, children: Sequence[Stream], line: int | None = None, offsets: Sequence[int] | None = None
    ) -> None:
        super().__init__(where)
        self.children = children
        self.line = line
        self.offsets = offsets or (0,) * len(children)

    def bind(self, stream: Stream) -> None:
        """Number the children's branches."""
        parent = stream.branch
        fork = parent.run.next_fork()
        for index, child in enumerate(self.children):
            child.hold(parent.run.new_branch(parent, index=index, fork=fork, cancel=parent.cancel))

    async def run(self, stream: Stream) -> None:
        """Copy the prompt; before branches race, make it cheap to extend."""
        assert stream.context is not None
        if len(self.children) > 1 and stream.text:
            await stream.context.commit(owner=stream.branch.owner(None, self.line), cancel=stream.branch.cancel)
        turns = Turns()
        for child, offset in zip(self.children, self.offsets, strict=True):
            child.adopt(stream, offset=offset)
            await turns.pause()
            if stream.branch.cancel.cancelled:
                raise asyncio.CancelledError
        await self._open()

    async def skip(self, stream: Stream, failure: Failure) -> None:
        """The children share the failure."""
        await self._open(failure)

    async def _open(self, failure: Failure | None = None) -> None:
        """All are known before one goes on."""
        turns = Turns()
        for child in self.children:
            child.open_branch()
            await turns.pause()
        for child in self.children:
            if failure is not None:
                child.fail(failure)
            child.release()
            await turns.pause()


class JoinStep(Step):
    """Tells of a join and, for a join of texts, says again in the parent what the branches said.

    With `caches` (the branches' streams) the backend joins their caches instead; the text is the same.
    """

    def __init__(
        self,
        where: str,
        branches: Sequence[Branch],
        mode: str,
        pieces: Sequence[Piece] = (),
        caches: Sequence[Stream] | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(where)
        self.branches = branches
        self.mode = mode
        self.pieces = pieces
        self.caches = caches
        self.line = line

    async def run(self, stream: Stream) -> None:
        """Replay."""
        turns = Turns()
        here = stream.branch
        joined = [branch.id for branch in self.branches if branch.run is here.run]
        stream.publish(BranchesJoined(here.id, joined, self.mode))
        if self.caches is not None:
            contexts = [cache.context for cache in self.caches if cache.context is not None]
            await cast(ConcatenatingContext, stream.context).concatenate(
                contexts, owner=here.owner(None, self.line), cancel=here.cancel
            )
            for piece in self.pieces:
                stream.take_over(piece)
                await turns.pause()
            return
        for piece in self.pieces:
            await turns.pause()
            if here.cancel.cancelled:
                raise asyncio.CancelledError
            if piece.kind == "role":
                stream.begin_role(piece.text)
            elif piece.kind == "role_end":
                stream.end_role()
            elif piece.picture is not None:
                stream.append_image(piece.picture)
            else:
                stream.append(piece.text, data=piece.kind == "generated")


def set_variable(stream: Stream, variable: Variable, value: Any, meta: dict[str, Any] | None = None) -> None:
    """Give a variable its value, and tell views."""
    variable.set(value, meta)
    stream.publish(told(stream, variable, value))


def told(stream: Stream, variable: Variable, value: Any) -> VariableSet:
    """What views hear of a value."""
    return VariableSet(stream.branch.id, variable.name, str(value), type(value).__name__)


def check_replayable(pieces: Sequence[Piece], role: str | None, index: int) -> None:
    """ProgramError unless a branch that was forked in `role` also ends in it."""
    end = role
    for piece in pieces:
        end = piece.text if piece.kind == "role" else None if piece.kind == "role_end" else end
    if end != role:
        raise ProgramError(
            f"branch {index} was forked {_inside(role)} and ends {_inside(end)}; "
            "join('concate_and_append') needs branches that close the roles they open, and no others"
        )


def _inside(role: str | None) -> str:
    return f"inside {role}" if role else "outside of roles"
