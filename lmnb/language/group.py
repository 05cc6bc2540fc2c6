"""`ProgramStateGroup`: the branches of one fork, and how they come together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from lmnb.errors import ArgumentError, ProgramError
from lmnb.language.expressions import Expr
from lmnb.language.messages import Piece, merged_pieces
from lmnb.language.source import caller_line
from lmnb.language.state import ProgramState
from lmnb.language.steps import JoinStep, SetStep, Step, check_replayable
from lmnb.language.variables import Variable

GATHER = "gather_variable"
CONCATENATE = "concate_and_append"


class ProgramStateGroup:
    """The branches of a fork, in order."""

    def __init__(self, states: list[ProgramState], parent: ProgramState) -> None:
        self.states = states
        self.parent = parent
        self._inherited = dict(parent.variables)
        self._joined = False

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...

    @overload
    def __getitem__(self, index: slice) -> list[ProgramState]: ...

    def __getitem__(self, index: int | slice) -> ProgramState | list[ProgramState]:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        # `group[0] += "text"` assigns what += returned; nothing else can be put here.
        if self.states[index] is not state:
            raise ArgumentError("a branch cannot be replaced; add to it with group[i] += ...")

    def __iadd__(self, other: str | Expr | Sequence[str | Expr] | Callable[[int], str | Expr]) -> ProgramStateGroup:
        """Add to every branch: the same text or expression, one item of a list each, or what `other(i)` returns."""
        for state, item in zip(self.states, items_for(other, len(self.states)), strict=True):
            state += item
        return self

    def join(self, mode: str = GATHER, *, approximate: bool = False) -> None:
        """Wait for the branches and bring them together; a branch that failed raises its error here.

        "gather_variable": each variable that the branches set becomes a list in the parent, one entry a branch, in
        order, with None from a branch that did not set it. A variable of the parent's own is left alone.
        "concate_and_append": what each branch has said since the fork is said again in the parent, in order.
        With `approximate=True` the backend joins the branches' caches as they are: nothing is computed again, but
        what a branch says has not attended to what the others say. It stays at its own positions (which
        `fork(position_ids_offset=...)` moves), and the parent goes on behind the branch that reaches furthest. Only
        on backends that can.
        Joining again changes nothing. The branches stay readable.
        """
        self._check_mode(mode, approximate)
        if self._joined:
            return
        for state in self.states:
            state.sync()
        self._bring_together(mode, approximate)

    async def join_async(self, mode: str = GATHER, *, approximate: bool = False) -> None:
        """`join` for a coroutine on any event loop, which goes on meanwhile."""
        self._check_mode(mode, approximate)
        if self._joined:
            return
        for state in self.states:
            await state
        self._bring_together(mode, approximate)

    def _check_mode(self, mode: str, approximate: bool) -> None:
        if mode not in (GATHER, CONCATENATE):
            raise ArgumentError(f"join's mode is {GATHER!r} or {CONCATENATE!r}, not {mode!r}")
        if approximate and mode != CONCATENATE:
            raise ArgumentError(f"approximate=True is for join({CONCATENATE!r})")
        backend = self.parent.stream.backend
        if approximate and not backend.capabilities.concatenates_caches:
            raise ProgramError(
                f"{backend.name} cannot concatenate the caches of branches; leave out approximate=True: "
                f"join({CONCATENATE!r}) gives the same text, and exact attention"
            )

    def _bring_together(self, mode: str, approximate: bool) -> None:
        line = caller_line()
        where = f"join at line {line}"
        branches = [state.stream.branch for state in self.states]
        step = JoinStep(where, branches, mode)
        if mode == CONCATENATE:
            pieces = self._pieces()
            caches = [state.stream for state in self.states] if approximate else None
            if approximate and any(piece.kind in ("role", "role_end") for piece in pieces):
                raise ProgramError("branches that open or close roles cannot be joined with approximate=True")
            step = JoinStep(where, branches, mode, pieces, caches, line)
        self._joined = True
        for state in self.states:
            state.stream.submit(Step(), optional=True, ending=True)
        self.parent.submit(step)
        if mode == GATHER:
            self._gather()

    def _pieces(self) -> list[Piece]:
        journals = [list(state.stream.journal) for state in self.states]
        for index, journal in enumerate(journals):
            check_replayable(journal, self.parent.open_role, index)
        return merged_pieces([piece for journal in journals for piece in journal])

    def _gather(self) -> None:
        names = list(dict.fromkeys(name for state in self.states for name in self._set_by(state)))
        gathered: list[Variable] = []
        for name in names:
            own = self.parent.variables.get(name)
            if own is not None and not own.gathered:
                continue
            values = [state.get_var(name) if name in self._set_by(state) else None for state in self.states]
            variable = Variable.ready(name, values)
            variable.gathered = True
            self.parent.declare(variable)
            gathered.append(variable)
        self.parent.stream.submit(SetStep("join", *gathered), optional=True)

    def _set_by(self, state: ProgramState) -> list[str]:
        """Names that the branch has set since the fork."""
        return [name for name, variable in state.variables.items() if self._inherited.get(name) is not variable]


def items_for(other: Any, size: int) -> list[Any]:
    """What each of `size` branches gets from `group += other`."""
    if callable(other) and not isinstance(other, Expr):
        return [other(index) for index in range(size)]
    if isinstance(other, (list, tuple)):
        if len(other) != size:
            raise ArgumentError(f"{len(other)} items cannot be added to {size} branches, one to each")
        return list(other)
    return [other] * size
