"""A program's parameters: which arguments are its own and which are options, and whether arguments fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lmnb.errors import ArgumentError, ProgramError
from lmnb.language.batch import Row
from lmnb.language.results import frame_kind

STATE = "s"
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Parameters:
    """What comes behind the state in a program's function. `bound` arguments win over those of a call."""

    def __init__(self, func: Callable[..., Any], name: str, owner: object | None, bound: Mapping[str, Any]) -> None:
        self._program = name
        self._before = () if owner is None else (owner,)
        self._bound = bound
        self._signature = inspect.signature(func)
        self.names = _parameter_names(func)

    def __repr__(self) -> str:
        return f"{self._program}({', '.join(self.names)})"

    def all(self) -> list[inspect.Parameter]:
        """The parameters themselves, `*args` and `**kwargs` included."""
        parameters = list(self._signature.parameters.values())
        return parameters[[parameter.name for parameter in parameters].index(STATE) + 1 :]

    def check_names(self, names: Iterable[str]) -> None:
        """ProgramError for a name that no parameter has."""
        for name in names:
            if name not in self.names:
                raise ProgramError(
                    f"{self._program} has no parameter {name!r}; it has: {', '.join(self.names) or 'none'}"
                )

    def split(
        self, kwargs: Mapping[str, Any], reserved: frozenset[str], caller: str, *, own: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The program's own arguments (none without `own`), and the options. The program's own names come first."""
        takes_any = own and any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in self.all())
        mine: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in kwargs.items():
            if own and name in self.names:
                mine[name] = value
            elif name in reserved:
                options[name] = value
            elif takes_any:
                mine[name] = value
            else:
                raise ProgramError(
                    f"{self._program}.{caller} has no argument {name!r}; the program's own are: "
                    f"{', '.join(self.names) or 'none'}; the options are: {', '.join(sorted(reserved))}"
                )
        return mine, options

    def fit(self, args: Sequence[Any], kwargs: Mapping[str, Any], what: str = "") -> Arguments:
        """Arguments with the bound ones in place. ProgramError if they do not fit the parameters."""
        free = [name for name in self.names if name not in self._bound]
        named = dict(zip(free, args, strict=False)) if self._bound else {}
        positional = tuple(args[len(named) :]) if self._bound else tuple(args)
        merged = {**kwargs, **named, **self._bound}
        try:
            repeated = [name for name in named if name in kwargs]
            if repeated:
                raise TypeError(f"multiple values for argument {repeated[0]!r}")
            self._signature.bind(*self._before, None, *positional, **merged)
        except TypeError as error:
            raise ProgramError(f"{what}the arguments do not fit {self!r}: {error}") from None
        return positional, merged

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that fit, by the parameters' names, defaults included."""
        bound = self._signature.bind(*self._before, None, *args, **kwargs)
        bound.apply_defaults()
        return dict(list(bound.arguments.items())[len(self._before) + 1 :])

    def rows(self, batch: Iterable[Mapping[str, Any] | Sequence[Any]]) -> list[Row]:
        """Rows with their arguments checked; the caller's dicts are copied."""
        if isinstance(batch, (str, bytes, Mapping)) or not isinstance(batch, Iterable):
            given = "None" if batch is None else f"a {type(batch).__name__}"
            raise ArgumentError(f"a batch is a list of rows, each a dict of arguments or a tuple of them, not {given}")
        if frame_kind(batch) is not None:
            raise ArgumentError(f"run_batch takes dicts or tuples; {self._program}.map(frame) takes a frame's rows")
        rows = []
        for index, row in enumerate(batch):
            if isinstance(row, Mapping):
                rows.append(Row(index, *self.fit((), row, f"row {index}: ")))
            elif isinstance(row, (list, tuple)):
                rows.append(Row(index, *self.fit(row, {}, f"row {index}: ")))
            else:
                raise ProgramError(f"row {index} must be a dict of arguments or a tuple of them, not {row!r}")
        return rows


def _parameter_names(func: Callable[..., Any]) -> list[str]:
    name = getattr(func, "__name__", func)
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise ProgramError(f"{name!s} must be a plain function or an async def: no yield")
    parameters = list(inspect.signature(func).parameters.values())
    names = [parameter.name for parameter in parameters]
    if STATE not in names[:2]:
        raise ProgramError(
            f"the first parameter of {name!s} must be the state, named `s` "
            f"(for a method, the second); it has: {', '.join(names) or 'none'}"
        )
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters[names.index(STATE) + 1 :] if parameter.kind in plain]
