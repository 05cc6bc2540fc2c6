"""`Program`: a Python function whose first parameter is the state `s`, made by `@function`. SGLang's SglFunction."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from lmnb.backends.base import Backend, CancelToken, Owner
from lmnb.backends.speculation import with_speculation
from lmnb.errors import GenerationError, ProgramError
from lmnb.language.batch import Batch, Row
from lmnb.language.call import Call, Home, RunOptions, new_call_branch
from lmnb.language.constant_prefix import constant_prefix
from lmnb.language.default_backend import resolve_backend
from lmnb.language.defaults import DEFAULT_NAMES, Defaults
from lmnb.language.graph import Graph
from lmnb.language.loop import background
from lmnb.language.mapping import map_rows
from lmnb.language.precache import commit
from lmnb.language.run import Run
from lmnb.language.state import ProgramState
from lmnb.language.stream import Stream
from lmnb.language.tracing import current_tracer, trace

STATE = "s"
_RUN_NAMES = DEFAULT_NAMES | {"stream", "backend", "use_thread"}
_MAP_NAMES = DEFAULT_NAMES | {"backend", "num_threads", "progress_bar"}
_BATCH_NAMES = _MAP_NAMES | {"generator_style"}


class Program:
    """A prompt program. Call it, or `run` it, with its arguments (all but `s`); the state comes back.

    `defaults` are its sampling defaults, `backend` is where it runs when a call does not say.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        *,
        bind_arguments: Mapping[str, Any] | None = None,
        defaults: Defaults | None = None,
        backend: Backend | None = None,
        owner: object | None = None,
    ) -> None:
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bind_arguments = dict(bind_arguments or {})
        self.defaults = defaults or Defaults()
        self.backend = backend
        self._owner = owner  # the object whose method this is
        self.arg_names = _parameter_names(func)
        functools.update_wrapper(self, func)

    @property
    def owner(self) -> object | None:
        """The object whose method this is, if it is one."""
        return self._owner

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.func, "__name__", "program"))

    def __repr__(self) -> str:
        return f"Program({self.name}({', '.join(self.arg_names)}))"

    def __get__(self, instance: object | None, owner: type | None = None) -> Program:
        return self if instance is None else self._changed(owner=instance)

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        return self.run(*args, **kwargs)

    def bind(self, **kwargs: Any) -> Program:
        """The same program with some arguments fixed; a bound value wins over one given in a call."""
        unknown = [name for name in kwargs if name not in self.arg_names]
        if unknown:
            raise ProgramError(f"{self.name} has no parameter {unknown[0]!r}; it has: {', '.join(self.arg_names)}")
        return self._changed(bind_arguments={**self.bind_arguments, **kwargs})

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the body to its end with these arguments; generations may still go on when the state comes back.

        Besides the program's own arguments, `kwargs` takes the sampling defaults (`max_new_tokens=128`,
        `temperature=1.0`, `stop`, `top_p`, `seed`, ... see `Defaults`), `backend`, `stream=True` (run the body in a
        thread and return at once, to read `text_iter`) and `use_thread=False` (wait for each step: for debugging).
        A parameter of the program's own with one of these names gets the value itself.
        Raises what the body raises. Inside another program's body, or a cell's, it becomes a part of that run.
        """
        tracer = current_tracer()
        if tracer is not None:
            return tracer.call(self, args, kwargs)  # type: ignore[return-value]  # it stands for a state
        arguments, settings = self._prepare(args, kwargs, "run")
        call, home = self._new_call(arguments, settings)
        if settings.stream:
            call.start_thread(home.leave)
            return call.state
        try:
            call.execute()
        except BaseException as error:
            home.leave(error)
            raise
        home.leave()
        return call.state

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """`run` for a coroutine on any event loop, which goes on meanwhile. The state that comes back is finished.

        A program that is an `async def` runs as a part of the awaiting task; a plain one in a thread. With
        `stream=True` the state comes back at once, to read `text_async_iter`. Cancelling the task cancels the run.
        """
        tracer = current_tracer()
        if tracer is not None:
            return tracer.call(self, args, kwargs)  # type: ignore[return-value]  # it stands for a state
        arguments, settings = self._prepare(args, kwargs, "arun")
        call, home = self._new_call(arguments, settings)
        if settings.stream:
            if self.is_async:
                call.start_task(home.leave)
            else:
                call.start_thread(home.leave)
            return call.state
        try:
            await (call.execute_async() if self.is_async else asyncio.to_thread(call.execute))
            await call.state.settled()
        except BaseException as error:
            call.branch.cancel.cancel()
            home.leave(error)
            raise
        home.leave()
        return call.state

    def run_batch(
        self, batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]], **kwargs: Any
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run once for each row, a dict of arguments or a tuple of them; the states come back in order, all finished.

        A row that fails keeps its error (`state.error()`), and the others go on. `kwargs` takes the sampling
        defaults, `backend`, `num_threads="auto"` (rows at work at one time), `progress_bar=False`, and
        `generator_style=False`: with it the states are yielded in order, at most 200 rows ahead of the reader.
        """
        _refuse_in_a_trace("run_batch")
        own, options = self._split(kwargs, _BATCH_NAMES, "run_batch", parameters=())
        assert not own
        num_threads = options.pop("num_threads", "auto")
        progress_bar = bool(options.pop("progress_bar", False))
        generator_style = bool(options.pop("generator_style", False))
        rows = self.checked_rows(batch_kwargs)
        if not rows:
            return iter(()) if generator_style else []
        settings = RunOptions(
            backend=self._chosen(options.pop("backend", None)),
            defaults=self.defaults.updated(options),
        )
        ahead = 200 if generator_style else None
        batch = Batch(self, rows, settings, num_threads=num_threads, progress_bar=progress_bar, ahead=ahead)
        return batch.states() if generator_style else list(batch.states())

    def map(self, rows: Any, *, resume: Any = None, **kwargs: Any) -> Any:
        """Run once for each row, and return the variables as a table.

        `rows`: a pandas or polars frame, whose columns with the names of parameters are the arguments, or dicts, or
        tuples. The result is a frame of the same kind (with the same index), for dicts and tuples `Results`: a list of
        dicts, with `to_pandas()`. Its columns are the variables, `returned`, `error`, `prompt_tokens`,
        `cached_tokens`, `completion_tokens`, `seconds`.

        A row that fails has its `error` and the variables it has got to. An interrupt raises `BatchStopped`, with the
        finished rows in `partial` (and in `lmnb.partial_results()`); `resume=` takes such a result, or any earlier
        one of the same rows, and runs only the rows that have an `error` in it. What all rows begin with is computed
        once, before them. `kwargs` takes the sampling defaults, `backend`, `num_threads="auto"`, and
        `progress_bar=True`, which shows rows, time left and how much of the prompts was reused.
        """
        _refuse_in_a_trace("map")
        own, options = self._split(kwargs, _MAP_NAMES, "map", parameters=())
        assert not own
        num_threads = options.pop("num_threads", "auto")
        progress_bar = bool(options.pop("progress_bar", True))
        settings = RunOptions(
            backend=self._chosen(options.pop("backend", None)),
            defaults=self.defaults.updated(options),
        )
        return map_rows(self, rows, settings, num_threads, progress_bar, resume)

    @property
    def is_async(self) -> bool:
        """Whether the program is an `async def`."""
        return inspect.iscoroutinefunction(self.func)

    def compile(self, *, backend: Backend | None = None, **known: Any) -> Graph:
        """The program as a graph, which can be printed, drawn, saved as JSON, run, and asked for its prefix.

        The body is executed once, with placeholders for the arguments that are neither bound nor in `known`. What
        looks at a placeholder's value (an `if`, a loop, `len`, ...) raises ProgramError with its line. `backend` is
        where the graph runs when a call does not say.
        """
        unknown = [name for name in known if name not in self.arg_names]
        if unknown:
            raise ProgramError(f"{self.name} has no parameter {unknown[0]!r}; it has: {', '.join(self.arg_names)}")
        return trace(self, {**known, **self.bind_arguments}, backend)

    def trace(self, *, backend: Backend | None = None, **kwargs: Any) -> Graph:
        """`compile` under SGLang's name for it."""
        return self.compile(backend=backend, **kwargs)

    def to_graphviz(self, **known: Any) -> Any:
        """The program's graph (see `compile`) as a `graphviz.Source`, which notebooks show."""
        return self.compile(**known).to_graphviz()

    def cache(self, backend: Backend | None = None) -> str:
        """Have the backend compute the constant text that each run begins with, so that later runs start from it.

        It is read from the source, with the bound arguments; nothing of the body is executed. Returns that text, ""
        if there is none.
        """
        graph = getattr(self.func, "__lmnb_graph__", None)
        known = self.bind_arguments
        prefix = graph.prefix(**known) if graph is not None else constant_prefix(self.func, known, self._owner)
        chosen = resolve_backend(backend or self.backend)
        return commit(prefix, chosen, Owner(run="cache", program=self.name), CancelToken())

    def parameters(self) -> list[inspect.Parameter]:
        """The parameters behind the state."""
        parameters = list(inspect.signature(self.func).parameters.values())
        return parameters[[parameter.name for parameter in parameters].index(STATE) + 1 :]

    def call_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """The checked arguments of a call, by position and by name, and its options."""
        own, options = self._split(kwargs, _RUN_NAMES, "run")
        return (*self._arguments(args, own), options)

    def call_body(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The Python function itself, on `state`: what it returns, or its coroutine."""
        before = () if self._owner is None else (self._owner,)
        return self.func(*before, state, *args, **kwargs)

    def _chosen(self, backend: Backend | None) -> Backend:
        """The backend of a call, which speculates if this program wants that."""
        return with_speculation(resolve_backend(backend or self.backend), self.num_api_spec_tokens)

    def _prepare(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], caller: str
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], RunOptions]:
        """The checked arguments of a call, and how it is to run."""
        own, options = self._split(kwargs, _RUN_NAMES, caller)
        stream = bool(options.pop("stream", False))
        settings = RunOptions(
            backend=self._chosen(options.pop("backend", None)),
            use_thread=bool(options.pop("use_thread", True)),
            defaults=self.defaults.updated(options),
            stream=stream,
        )
        return self._arguments(args, own), settings

    def _new_call(self, arguments: tuple[tuple[Any, ...], dict[str, Any]], settings: RunOptions) -> tuple[Call, Home]:
        home = Home.find(self.name, settings.backend)
        branch = new_call_branch(home, self.name, fork=home.run.next_fork()) if home.joined else home.branch
        return Call(self, *arguments, settings, branch), home

    def _changed(self, **changes: Any) -> Program:
        return Program(
            self.func,
            self.num_api_spec_tokens,
            bind_arguments=changes.get("bind_arguments", self.bind_arguments),
            defaults=self.defaults,
            backend=self.backend,
            owner=changes.get("owner", self._owner),
        )

    def _split(
        self, kwargs: Mapping[str, Any], reserved: frozenset[str], caller: str, parameters: Sequence[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The program's own arguments, and the options."""
        takes_any = parameters is None and _takes_any_keyword(self.func)
        mine = self.arg_names if parameters is None else parameters
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in mine:
                own[name] = value
            elif name in reserved:
                options[name] = value
            elif takes_any:
                own[name] = value
            else:
                raise ProgramError(
                    f"{self.name}.{caller} has no argument {name!r}; the program's own are: "
                    f"{', '.join(self.arg_names) or 'none'}; the options are: {', '.join(sorted(reserved))}"
                )
        return own, options

    def _arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], what: str = ""
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with the bound ones in place. ProgramError if they do not fit the parameters."""
        free = [name for name in self.arg_names if name not in self.bind_arguments]
        named = dict(zip(free, args, strict=False)) if self.bind_arguments else {}
        positional = tuple(args[len(named) :]) if self.bind_arguments else tuple(args)
        merged = {**kwargs, **named, **self.bind_arguments}
        before = () if self._owner is None else (self._owner,)
        try:
            repeated = [name for name in named if name in kwargs]
            if repeated:
                raise TypeError(f"multiple values for argument {repeated[0]!r}")
            inspect.signature(self.func).bind(*before, None, *positional, **merged)
        except TypeError as error:
            raise ProgramError(f"{what}the arguments do not fit {self!r}: {error}") from None
        return positional, merged

    def checked_rows(self, batch: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[Row]:
        """Rows with their arguments checked; the caller's dicts are copied."""
        if isinstance(batch, (str, bytes, Mapping)):
            raise ProgramError("a batch is a list of rows, each a dict of arguments or a tuple of them")
        rows = []
        for index, row in enumerate(batch):
            if isinstance(row, Mapping):
                rows.append(Row(index, *self._arguments((), row, f"row {index}: ")))
            elif isinstance(row, (list, tuple)):
                rows.append(Row(index, *self._arguments(row, {}, f"row {index}: ")))
            else:
                raise ProgramError(f"row {index} must be a dict of arguments or a tuple of them, not {row!r}")
        return rows


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> Program: ...


@overload
def function(func: None = None, num_api_spec_tokens: int | None = None) -> Callable[[Callable[..., Any]], Program]: ...


def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function whose first parameter is `s` (for a method: the one after `self`)."""
    if func is None:
        return lambda later: Program(later, num_api_spec_tokens)
    return Program(func, num_api_spec_tokens)


def open_state(
    backend: Backend,
    *,
    program: str = "cell",
    cell: str | None = None,
    defaults: Defaults | None = None,
    continue_from: ProgramState | None = None,
    background_run: bool = False,
) -> ProgramState:
    """A fresh state in a new run, for a body that the caller executes within `state.run.active()`.

    End it with `state.run.finish()`. `continue_from`: start with all that another state has said, and its variables;
    it is waited for. `background_run`: the body will run in another thread, and readers elsewhere wait for its end.
    A state that failed cannot be continued (its error is raised); a cancelled one can: a turn that
    was cut off is closed. `defaults` None takes that state's, else the ordinary ones.
    """
    earlier = continue_from
    if earlier is None:
        run = Run(program, backend, cell=cell, background=background_run)
        return ProgramState(Stream(backend, run.root), defaults, body=run.body)
    error = earlier.error()
    if isinstance(error, GenerationError):
        raise error
    if earlier.stream.backend is not backend:
        raise ProgramError(
            f"the state to continue was made on {earlier.stream.backend.name}, and this cell runs on {backend.name}; "
            "run it on the same model"
        )
    cut = earlier.stream.failure is not None
    run = Run(program, backend, cell=cell, background=background_run)
    stream = Stream(backend, run.root)
    if earlier.stream.context is not None:
        background.call(lambda: stream.adopt(earlier.stream, close_role=cut))
    return ProgramState(
        stream,
        defaults or earlier.defaults,
        variables=dict(earlier.variables),
        role=None if cut else earlier.open_role,
        body=run.body,
    )


def _parameter_names(func: Callable[..., Any]) -> list[str]:
    """The program's own parameters, which come after `s`."""
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise ProgramError(f"{getattr(func, '__name__', func)!s} must be a plain function or an async def: no yield")
    parameters = list(inspect.signature(func).parameters.values())
    names = [parameter.name for parameter in parameters]
    if STATE not in names[:2]:
        raise ProgramError(
            f"the first parameter of {getattr(func, '__name__', func)!s} must be the state, named `s` "
            f"(for a method, the second); it has: {', '.join(names) or 'none'}"
        )
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters[names.index(STATE) + 1 :] if parameter.kind in plain]


def _refuse_in_a_trace(what: str) -> None:
    if current_tracer() is not None:
        raise ProgramError(f"{what} inside a program cannot become a part of a graph; call the program for each row")


def _takes_any_keyword(func: Callable[..., Any]) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inspect.signature(func).parameters.values())
