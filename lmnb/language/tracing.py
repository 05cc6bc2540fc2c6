"""From a program to a graph: its body is executed once, with placeholders, on a state that only takes notes.

Python that does not depend on the placeholders runs as it is, loops and calls of other programs included; what looks
at a value that is not known yet is refused, with its line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lmnb.backends.base import Backend
from lmnb.errors import ProgramError
from lmnb.language.coroutines import run_to_end
from lmnb.language.default_backend import checked_backend
from lmnb.language.defaults import Defaults
from lmnb.language.fstrings import with_placeholders
from lmnb.language.graph import REQUIRED, Call, Graph, Op
from lmnb.language.placeholders import Argument
from lmnb.language.source import caller_line
from lmnb.language.traced_state import TracedState

if TYPE_CHECKING:
    from lmnb.language.program import Program

_current: ContextVar[Tracer | None] = ContextVar("lmnb_tracer", default=None)


def current_tracer() -> Tracer | None:
    """The tracer whose program's body is executing."""
    return _current.get()


def trace(program: Program, known: Mapping[str, Any], backend: Backend | None) -> Graph:
    """The graph of `program`, with the arguments in `known` (and the bound ones) as constants."""
    parameters: dict[str, Any] = {}
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in program.parameters.all():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise ProgramError(f"{program.name} takes *{parameter.name}, which a graph cannot; name its parameters")
        if parameter.name in known:
            value = known[parameter.name]
        else:
            value = Argument(parameter.name)
            empty = parameter.default is inspect.Parameter.empty
            parameters[parameter.name] = REQUIRED if empty else parameter.default
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    tracer = Tracer()
    state = tracer.new_state(program.defaults.n)
    result = tracer.execute(program, state, args, kwargs)
    chosen = program.backend if backend is None else checked_backend(backend)
    return Graph(program.name, parameters, tuple(tracer.ops), result, _differences(program.defaults), chosen)


class Tracer:
    """Numbers the streams and collects what they do."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.gathered: dict[int, set[str]] = {}  # by stream: variables that a join has made
        self._num_streams = 0

    def new_state(self, n: int = 1, like: TracedState | None = None) -> TracedState:
        """The next stream: empty, or all that `like` has said so far."""
        number = self._num_streams
        self._num_streams += 1
        if like is None:
            return TracedState(self, number, {}, None, n)
        return TracedState(self, number, dict(like.variables), like.role, like.n)

    def call(self, program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TracedState:
        """A program that the body calls: a stream of its own."""
        positional, named, options = program.call_arguments(args, kwargs)
        if options.pop("backend", None) is not None or options.pop("stream", False):
            raise ProgramError(f"line {caller_line()}: a graph runs on one backend, and calls in it do not stream")
        options.pop("use_thread", None)
        defaults = program.defaults.updated(options)
        state = self.new_state(defaults.n)
        caller = _caller.get()
        self.ops.append(Call(caller, caller_line(), state.number, program.name, _differences(defaults)))
        state.ret_value = self.execute(program, state, positional, named)
        return state

    def execute(self, program: Program, state: TracedState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the body; ProgramError, with the line, for what cannot become a graph."""
        func = with_placeholders(program.func)
        before = () if program.owner is None else (program.owner,)
        tracing, calling = _current.set(self), _caller.set(state.number)
        try:
            if program.is_async:
                return run_to_end(lambda: func(*before, state, *args, **kwargs), f"lmnb-{program.name}")
            return func(*before, state, *args, **kwargs)
        except Exception as error:
            if isinstance(error, ProgramError) and str(error).startswith("line "):
                raise
            told = str(error) if isinstance(error, ProgramError) else f"{type(error).__name__}: {error}"
            line = _line_of(error, program.func)
            raise ProgramError(f"line {line}: {program.name} cannot become a graph: {told}") from error
        finally:
            _caller.reset(calling)
            _current.reset(tracing)


_caller: ContextVar[int] = ContextVar("lmnb_traced_stream", default=0)


def _differences(defaults: Defaults) -> dict[str, Any]:
    plain = Defaults()
    names = [item.name for item in fields(Defaults)]
    return {name: getattr(defaults, name) for name in names if getattr(defaults, name) != getattr(plain, name)}


def _line_of(error: BaseException, func: Callable[..., Any]) -> int | None:
    """The last line of the program's own file on the way to the error."""
    line = None
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == func.__code__.co_filename:
            line = step.tb_lineno
        step = step.tb_next
    return line
