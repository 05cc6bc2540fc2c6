"""Running a graph: its ops, in their order, on real states. A text that uses a variable waits for it in its own
stream, so that the other streams go on.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from lmnb.backends.well_formed import well_formed
from lmnb.errors import ProgramError
from lmnb.language.call import Home, new_call_branch
from lmnb.language.defaults import Defaults
from lmnb.language.expressions import Expr, Gen, Image, Select, flatten
from lmnb.language.graph import REQUIRED, Append, Call, Fork, Graph, Join, Op, Scope, SetVariable
from lmnb.language.group import ProgramStateGroup
from lmnb.language.parameters import STATE
from lmnb.language.placeholders import Argument, Placeholder, VariableRef
from lmnb.language.primitives import picture_of, select
from lmnb.language.program import Program
from lmnb.language.state import ProgramState
from lmnb.language.steps import ScopeStep, Step
from lmnb.language.stream import Stream
from lmnb.language.variables import Variable


def graph_program(graph: Graph) -> Program:
    """A program with the graph's name and parameters."""
    signature = _signature(graph)

    def body(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _Execution(graph, bound.arguments.pop(STATE), bound.arguments).run()

    body.__name__ = graph.name
    body.__doc__ = f"The graph of {graph.name}."
    body.__signature__ = signature  # type: ignore[attr-defined]
    body.__lmnb_graph__ = graph  # type: ignore[attr-defined]
    return Program(body, defaults=Defaults().updated(graph.options), backend=graph.backend)


def _signature(graph: Graph) -> inspect.Signature:
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(STATE, kind)]
    for name, default in graph.parameters.items():
        if default is REQUIRED and parameters[-1].default is not inspect.Parameter.empty:
            kind = inspect.Parameter.KEYWORD_ONLY  # Python has no required parameter behind one with a default
        given = inspect.Parameter.empty if default is REQUIRED else default
        parameters.append(inspect.Parameter(name, kind, default=given))
    return inspect.Signature(parameters)


class _Execution:
    """One run of a graph."""

    def __init__(self, graph: Graph, state: ProgramState, arguments: Mapping[str, Any]) -> None:
        self._graph = graph
        self._arguments = arguments
        self._states = {0: state}
        self._groups: dict[tuple[int, ...], ProgramStateGroup] = {}
        self._scopes: dict[tuple[int, str], Variable] = {}
        self._called: list[ProgramState] = []

    def run(self) -> Any:
        try:
            for op in self._graph.ops:
                self._do(op, self._states[op.stream])
            return self._value(self._graph.result)
        finally:
            for state in self._called:
                state.stream.submit(Step(), optional=True, ending=True)

    def _do(self, op: Op, state: ProgramState) -> None:
        match op:
            case Append(node=node):
                self._append(node, state, op.line)
            case Scope():
                self._scope(op, state)
            case SetVariable(name=name, value=value):
                state.set_var(name, self._value(value))
            case Fork(children=children, offsets=offsets):
                group = state.fork(len(children), None if offsets is None else list(offsets))
                self._groups[children] = group
                self._states.update(zip(children, group, strict=True))
            case Join(children=children, mode=mode, approximate=approximate):
                self._groups[children].join(mode, approximate=approximate)
            case Call(child=child, program=program, options=options):
                self._states[child] = self._call(program, options, state)

    def _append(self, node: Expr, state: ProgramState, line: int | None) -> None:
        match node:
            case Argument(name=name, formatted=formatted):
                value = self._arguments[name]
                state.append_at(flatten(str(value) if formatted else value), line)
            case VariableRef():
                where = f"{node!r} at line {line}"
                state.submit(_SayStep(where, self._states[node.stream].variables[node.name], node))
            case Gen():
                state.append_at((self._with_values(node),), line)
            case Image(picture=Placeholder() as source, num_frames=num_frames):
                state.append_at((picture_of(self._value(source), self._value(num_frames)),), line)
            case Select(choices=choices):
                state.append_at(flatten(select(node.name, self._value(choices), 0.0, node.method)), line)
            case _:
                state.append_at((node,), line)

    def _with_values(self, node: Gen) -> Gen:
        """Options that are arguments, as values."""
        options = node.options
        given = {item.name: getattr(options, item.name) for item in fields(options)}
        changed = {name: self._value(value) for name, value in given.items() if isinstance(value, Placeholder)}
        return replace(node, options=replace(options, **changed)) if changed else node

    def _scope(self, op: Scope, state: ProgramState) -> None:
        where = f"var_scope({op.name!r}) at line {op.line}"
        key = (op.stream, op.name)
        if op.begin:
            self._scopes[key] = Variable(op.name)
            state.declare(self._scopes[key])
        state.submit(ScopeStep(where, self._scopes[key], begin=op.begin))

    def _call(self, program: str, options: Mapping[str, Any], caller: ProgramState) -> ProgramState:
        backend = caller.stream.backend
        home = Home.find(program, backend)
        branch = new_call_branch(home, program, fork=home.run.next_fork())
        state = ProgramState(Stream(backend, branch), Defaults().updated(options))
        self._called.append(state)
        home.leave()
        return state

    def _value(self, value: Any) -> Any:
        """With placeholders replaced by what they stand for; waits for variables."""
        if isinstance(value, Argument):
            return self._arguments[value.name]
        if isinstance(value, VariableRef):
            found = self._states[value.stream].get_var(value.name)
            return found if value.sample is None else _sample(found, value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._value(item) for item in value)
        if isinstance(value, dict):
            return {key: self._value(item) for key, item in value.items()}
        return value


def _sample(samples: Any, ref: VariableRef) -> Any:
    """One of a variable's samples; a run may ask for another number of them than the graph was made with."""
    assert ref.sample is not None
    if not isinstance(samples, (list, tuple)) or ref.sample >= len(samples):
        raise ProgramError(f"there is no {ref!r} in this run; run the graph with the n that it was made with")
    return samples[ref.sample]


class _SayStep(Step):
    """Adds the text of a variable of any stream, when it is there."""

    def __init__(self, where: str, variable: Variable, ref: VariableRef) -> None:
        super().__init__(where)
        self.variable = variable
        self.ref = ref

    def again(self, renewed: Mapping[Variable, Variable]) -> Step:
        """The text of the variable that stands in for it."""
        return _SayStep(self.where, renewed.get(self.variable, self.variable), self.ref)

    async def run(self, stream: Stream) -> None:
        """Wait for it; fail as it failed."""
        variable = self.variable
        await variable.signal.wait_async(lambda: variable.done)
        if variable.failure is not None:
            raise variable.failure.error(f"variable {variable.name!r} has no value")
        value = variable.value if self.ref.sample is None else _sample(variable.value, self.ref)
        if not isinstance(value, str):
            if not self.ref.formatted:
                raise ProgramError(f"only text can be added to a program, not {value!r}; use str(...) for other values")
            value = str(value)
        await stream.read_in(well_formed(value))
