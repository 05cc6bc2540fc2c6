"""`Program`: a Python function whose first parameter is the state `s`, made by `@function`. SGLang's SglFunction."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from lmnb.backends.base import Backend, CancelToken, Owner
from lmnb.backends.speculation import with_speculation
from lmnb.errors import ProgramError
from lmnb.language import arguments
from lmnb.language.batch import Batch
from lmnb.language.call import Call, Home, RunOptions, new_call_branch
from lmnb.language.constant_prefix import constant_prefix
from lmnb.language.default_backend import resolve_backend
from lmnb.language.defaults import DEFAULT_NAMES, Defaults
from lmnb.language.graph import Graph
from lmnb.language.interrupts import calm, calm_interrupts
from lmnb.language.mapping import map_rows
from lmnb.language.parameters import Parameters
from lmnb.language.precache import commit
from lmnb.language.state import ProgramState
from lmnb.language.tracing import current_tracer, trace

_RUN_NAMES = DEFAULT_NAMES | {"stream", "backend", "use_thread"}
_MAP_NAMES = DEFAULT_NAMES | {"backend", "num_threads", "progress_bar"}
_BATCH_NAMES = _MAP_NAMES | {"generator_style"}


class Program:
    """A prompt program. Call it, or `run` it, with its arguments (all but `s`); the state comes back.

    `defaults` are its sampling defaults, `backend` is where it runs when a call does not say: a backend, or a function
    that each such call asks for one.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        *,
        bind_arguments: Mapping[str, Any] | None = None,
        defaults: Defaults | None = None,
        backend: Backend | Callable[[], Backend] | None = None,
        owner: object | None = None,
    ) -> None:
        self.func = func
        self.num_api_spec_tokens = arguments.at_least_one("num_api_spec_tokens", num_api_spec_tokens)
        self.bind_arguments = dict(bind_arguments or {})
        self.defaults = defaults or Defaults()
        self._backend = backend
        self._owner = owner  # the object whose method this is
        self.parameters = Parameters(func, self.name, owner, self.bind_arguments)
        functools.update_wrapper(self, func)

    @property
    def backend(self) -> Backend | None:
        """Where it runs now when a call does not say; None for the default backend."""
        given: Any = self._backend
        found: Backend | None = given if given is None or hasattr(given, "new_context") else given()
        return found

    @property
    def arg_names(self) -> list[str]:
        """The names of its parameters, without the state."""
        return self.parameters.names

    @property
    def owner(self) -> object | None:
        """The object whose method this is, if it is one."""
        return self._owner

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.func, "__name__", "program"))

    def __repr__(self) -> str:
        return f"Program({self.parameters!r})"

    def __get__(self, instance: object | None, owner: type | None = None) -> Program:
        return self if instance is None else self._changed(owner=instance)

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        __tracebackhide__ = True
        return self.run(*args, **kwargs)

    def bind(self, **kwargs: Any) -> Program:
        """The same program with some arguments fixed; a bound value wins over one given in a call."""
        self.parameters.check_names(kwargs)
        return self._changed(bind_arguments={**self.bind_arguments, **kwargs})

    @calm_interrupts
    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the body to its end with these arguments; generations may still go on when the state comes back.

        Besides the program's own arguments, `kwargs` takes the sampling defaults (`max_new_tokens=128`,
        `temperature=1.0`, `stop`, `top_p`, `seed`, ... see `Defaults`), `backend`, `stream=True` (run the body in a
        thread and return at once, to read `text_iter`) and `use_thread=False` (wait for each step: for debugging).
        A parameter of the program's own with one of these names gets the value itself.
        Raises what the body raises. Inside another program's body, or a cell's, it becomes a part of that run.
        """
        __tracebackhide__ = True
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
            calm(error)
            call.branch.cancel.cancel()
            home.leave(error)
            raise
        home.leave()
        return call.state

    @calm_interrupts
    def run_batch(
        self, batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]], **kwargs: Any
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run once for each row, a dict of arguments or a tuple of them; the states come back in order, all finished.

        A row that fails keeps its error (`state.error()`), and the others go on. `kwargs` takes the sampling
        defaults, `backend`, `num_threads="auto"` (rows at work at one time), `progress_bar=False`, and
        `generator_style=False`: with it the states are yielded in order, at most 200 rows ahead of the reader.
        """
        _refuse_in_a_trace("run_batch")
        _, options = self.parameters.split(kwargs, _BATCH_NAMES, "run_batch", own=False)
        num_threads = options.pop("num_threads", "auto")
        progress_bar = bool(options.pop("progress_bar", False))
        generator_style = bool(options.pop("generator_style", False))
        rows = self.parameters.rows(batch_kwargs)
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
        `cached_tokens`, `completion_tokens`, `seconds`, and `row_key`, which tells rows by their arguments.

        A row that fails has its `error` and the variables it has got to. An interrupt raises `BatchStopped`, with the
        finished rows in `partial` (and in `lmnb.partial_results()`); `resume=` takes such a result, or any earlier
        one, also from a file, and runs only the rows whose arguments it has not finished. What all rows begin with is
        computed once, before them. `kwargs` takes the sampling defaults, `backend`, `num_threads="auto"`, and
        `progress_bar=True`, which shows rows, time left and how much of the prompts was reused.
        """
        _refuse_in_a_trace("map")
        _, options = self.parameters.split(kwargs, _MAP_NAMES, "map", own=False)
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
        self.parameters.check_names(known)
        return trace(self, {**known, **self.bind_arguments}, backend)

    def trace(self, *, backend: Backend | None = None, **kwargs: Any) -> Graph:
        """`compile` under SGLang's name for it."""
        return self.compile(backend=backend, **kwargs)

    def to_graphviz(self, **known: Any) -> Any:
        """The program's graph (see `compile`) as a `graphviz.Source`, which notebooks show."""
        return self.compile(**known).to_graphviz()

    @calm_interrupts
    def cache(self, backend: Backend | None = None) -> str:
        """Have the backend compute the constant text that each run begins with, so that later runs start from it.

        It is read from the source, with the bound arguments; nothing of the body is executed. Returns that text, ""
        if there is none.
        """
        graph = getattr(self.func, "__lmnb_graph__", None)
        known = self.bind_arguments
        prefix = graph.prefix(**known) if graph is not None else constant_prefix(self.func, known, self._owner)
        chosen = resolve_backend(self.backend if backend is None else backend)
        return commit(prefix, chosen, Owner(run="cache", program=self.name), CancelToken())

    def call_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """The checked arguments of a call, by position and by name, and its options."""
        own, options = self.parameters.split(kwargs, _RUN_NAMES, "run")
        return (*self.parameters.fit(args, own), options)

    def call_body(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The Python function itself, on `state`: what it returns, or its coroutine."""
        __tracebackhide__ = True
        before = () if self._owner is None else (self._owner,)
        return self.func(*before, state, *args, **kwargs)

    def _chosen(self, backend: Backend | None) -> Backend:
        """The backend of a call, which speculates if this program wants that."""
        return with_speculation(resolve_backend(self.backend if backend is None else backend), self.num_api_spec_tokens)

    def _prepare(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], caller: str
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], RunOptions]:
        """The checked arguments of a call, and how it is to run."""
        own, options = self.parameters.split(kwargs, _RUN_NAMES, caller)
        stream = bool(options.pop("stream", False))
        settings = RunOptions(
            backend=self._chosen(options.pop("backend", None)),
            use_thread=bool(options.pop("use_thread", True)),
            defaults=self.defaults.updated(options),
            stream=stream,
        )
        return self.parameters.fit(args, own), settings

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
            backend=self._backend,
            owner=changes.get("owner", self._owner),
        )


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


def _refuse_in_a_trace(what: str) -> None:
    if current_tracer() is not None:
        raise ProgramError(f"{what} inside a program cannot become a part of a graph; call the program for each row")
