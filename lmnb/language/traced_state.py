"""What a traced body works on: a state and groups that take notes for the graph, and hand out placeholders."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from lmnb.errors import ArgumentError, ProgramError
from lmnb.language import arguments
from lmnb.language.expressions import Expr, Gen, RoleBegin, RoleEnd, Select, Submitted, flatten
from lmnb.language.graph import Append, Fork, Join, Op, Scope, SetVariable
from lmnb.language.group import CONCATENATE, GATHER, items_for
from lmnb.language.placeholders import VariableRef
from lmnb.language.primitives import role_turn
from lmnb.language.reasoning import SUFFIX
from lmnb.language.source import caller_line
from lmnb.language.submission import check_roles, merge_text
from lmnb.language.variables import unknown_variable

if TYPE_CHECKING:
    from lmnb.language.tracing import Tracer


class TracedState:
    """Takes notes of what is done to it, and hands out placeholders. It offers what `ProgramState` offers; asking it
    for text that is not there yet is refused."""

    def __init__(self, tracer: Tracer, number: int, variables: dict[str, Any], role: str | None, n: int) -> None:
        self.tracer = tracer
        self.number = number
        self.variables = variables
        self.role = role
        self.n = n
        self.ret_value: Any = None

    def __repr__(self) -> str:
        return f"TracedState(s{self.number})"

    def __iadd__(self, other: str | Expr) -> TracedState:
        self._append(flatten(other))
        return self

    def system(self, expr: str | Expr | None = None) -> Any:
        """A system turn."""
        return self._turn("system", expr)

    def user(self, expr: str | Expr | None = None) -> Any:
        """A user turn."""
        return self._turn("user", expr)

    def assistant(self, expr: str | Expr | None = None) -> Any:
        """An assistant turn."""
        return self._turn("assistant", expr)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[TracedState]:
        """See `ProgramState.var_scope`."""
        self._note(Scope(self.number, caller_line(), name, True))
        yield self
        self._note(Scope(self.number, caller_line(), name, False))
        self.variables[name] = VariableRef(self.number, name)

    def set_var(self, name: str, value: Any) -> None:
        """See `ProgramState.set_var`."""
        self.variables[name] = value
        self._note(SetVariable(self.number, caller_line(), name, value))

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> TracedGroup:
        """See `ProgramState.fork`."""
        size = arguments.fork_size(size)
        children = [self.tracer.new_state(like=self) for _ in range(size)]
        offsets = arguments.position_offsets(position_ids_offset, size)
        self._note(Fork(self.number, caller_line(), tuple(child.number for child in children), offsets))
        return TracedGroup(children, self)

    @contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Iterator[TracedState]:
        """See `ProgramState.copy`."""
        group = self.fork(1, position_ids_offset)
        yield group[0]
        group.join()

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def get_var(self, name: str) -> Any:
        """The placeholder of a variable, or the value that `set_var` gave."""
        if name not in self.variables:
            raise unknown_variable(name, self.variables)
        return self.variables[name]

    async def get(self, name: str) -> Any:
        """See `ProgramState.get`."""
        return self.get_var(name)

    def __await__(self) -> Generator[Any, None, TracedState]:
        async def itself() -> TracedState:
            return self

        return itself().__await__()

    async def settled(self) -> None:
        """Nothing to wait for."""

    def sync(self) -> None:
        """Nothing to wait for."""

    def error(self) -> None:
        """Nothing has failed."""

    def __contains__(self, name: object) -> bool:
        self._refuse("asks whether a variable is there already")

    def text(self) -> NoReturn:
        """Not known yet."""
        self._refuse("reads the text of the state")

    def messages(self) -> NoReturn:
        """Not known yet."""
        self._refuse("reads the messages of the state")

    def get_meta_info(self, name: str) -> NoReturn:
        """Not known yet."""
        self._refuse("reads meta data")

    def text_iter(self, var_name: str | None = None) -> NoReturn:
        """Not known yet."""
        self._refuse("reads the text of the state")

    text_async_iter = text_iter

    def _refuse(self, what: str) -> NoReturn:
        raise ProgramError(
            f"line {caller_line()}: the program {what}, which is not known before it runs, so it cannot become a graph"
        )

    def _turn(self, role: str, expr: str | Expr | None) -> Any:
        if expr is None:
            return self._open_turn(role)
        turn = role_turn(role, expr)
        self._append(turn.nodes)
        return Submitted(self, turn.nodes)

    @contextmanager
    def _open_turn(self, role: str) -> Iterator[TracedState]:
        self._append((RoleBegin(role),))
        yield self
        self._append((RoleEnd(role),))

    def _append(self, nodes: Sequence[Expr]) -> None:
        fresh = [node for node in nodes if not (isinstance(node, Submitted) and node.owner is self)]
        self.role = check_roles(fresh, self.role)
        line = caller_line()
        for node in merge_text(fresh):
            self._note(Append(self.number, line, node))
            if isinstance(node, (Gen, Select)) and node.name is not None:
                self._declare(node, node.name)

    def _declare(self, node: Gen | Select, name: str) -> None:
        n = self.n if isinstance(node, Gen) and node.options.n is None else getattr(node, "options", self).n
        for variable in (name, f"{name}{SUFFIX}")[: 2 if node.reasoning is not None else 1]:
            self.variables[variable] = (
                [VariableRef(self.number, variable, index) for index in range(n)]
                if isinstance(node, Gen) and n > 1
                else VariableRef(self.number, variable)
            )

    def _note(self, op: Op) -> None:
        self.tracer.ops.append(op)


class TracedGroup:
    """The branches of a traced fork. It offers what `ProgramStateGroup` offers."""

    def __init__(self, states: list[TracedState], parent: TracedState) -> None:
        self.states = states
        self.parent = parent
        self._inherited = dict(parent.variables)
        self._gathered = parent.tracer.gathered.setdefault(parent.number, set())

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[TracedState]:
        return iter(self.states)

    def __getitem__(self, index: Any) -> Any:
        return self.states[index]

    def __setitem__(self, index: int, state: TracedState) -> None:
        if self.states[index] is not state:
            raise ArgumentError("a branch cannot be replaced; add to it with group[i] += ...")

    def __iadd__(self, other: str | Expr | Sequence[str | Expr] | Callable[[int], str | Expr]) -> TracedGroup:
        for state, item in zip(self.states, items_for(other, len(self.states)), strict=True):
            state += item
        return self

    def join(self, mode: str = GATHER, *, approximate: bool = False) -> None:
        """See `ProgramStateGroup.join`."""
        if mode not in (GATHER, CONCATENATE):
            raise ArgumentError(f"join's mode is {GATHER!r} or {CONCATENATE!r}, not {mode!r}")
        children = tuple(state.number for state in self.states)
        parent = self.parent
        parent.tracer.ops.append(Join(parent.number, caller_line(), children, mode, approximate))
        if mode == CONCATENATE:
            return
        for name in dict.fromkeys(name for state in self.states for name in self._set_by(state)):
            if name in parent.variables and name not in self._gathered:
                continue
            parent.variables[name] = [
                state.variables[name] if name in self._set_by(state) else None for state in self.states
            ]
            self._gathered.add(name)

    async def join_async(self, mode: str = GATHER, *, approximate: bool = False) -> None:
        """See `ProgramStateGroup.join_async`."""
        self.join(mode, approximate=approximate)

    def _set_by(self, state: TracedState) -> list[str]:
        missing = object()
        return [name for name, value in state.variables.items() if self._inherited.get(name, missing) is not value]
