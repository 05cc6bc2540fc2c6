"""Whether a graph that was read from a file hangs together: each part of its type, each stream, variable and argument
there where it is used. A graph that was traced does."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from lmnb.backends.base import Backend
from lmnb.errors import ArgumentError, LmnbError
from lmnb.language import arguments
from lmnb.language.choices import ChoicesSamplingMethod
from lmnb.language.defaults import Defaults
from lmnb.language.expressions import Gen, Image, RoleBegin, RoleEnd, SamplingOptions, Select, Text
from lmnb.language.graph import Append, Call, Fork, Graph, Join, Op, Scope, SetVariable, describe
from lmnb.language.group import CONCATENATE, GATHER
from lmnb.language.parameters import STATE
from lmnb.language.placeholders import Argument, Placeholder, VariableRef
from lmnb.language.primitives import select
from lmnb.language.reasoning import SUFFIX
from lmnb.runtime.argument_checks import shown

_SAYABLE = (Text, RoleBegin, RoleEnd, Argument, VariableRef, Gen, Select, Image)
_NAMES = {"ChoicesSamplingMethod": ChoicesSamplingMethod, "Backend": Backend}  # that modules import for types only


def check_graph(graph: Graph) -> None:
    """ArgumentError, with the place, for the first thing that is wrong."""
    _check_types(graph, "the graph")
    _Checker(graph).check()


class _Checker:
    """Goes through a graph's ops as a run would."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        # By stream, the variables that are there so far, with their number of samples (None: it shows in a run).
        self._variables: dict[int, dict[str, int | None]] = {0: {}}
        self._samples = {0: graph.options.get("n") or 1}  # by stream, of a generation that does not say
        self._forks: dict[tuple[int, ...], int] = {}  # the stream that forked
        self._scopes: set[tuple[int, str]] = set()

    def check(self) -> None:
        graph = self._graph
        for name in graph.parameters:
            if not isinstance(name, str) or not name.isidentifier() or name == STATE:
                raise ArgumentError(f"{shown(name)} cannot be the name of a parameter")
        _check_options(graph.options, "its options")
        for number, op in enumerate(graph.ops):
            where = f"op {number}"
            _check_types(op, where)
            where = f"{where} ({describe(op)[:60]})"
            self._stream(op.stream, where)
            for value in (getattr(op, item.name) for item in fields(op)):
                self._check_placeholders(value, where)
            self._op(op, where)
        self._check_placeholders(graph.result, "its result")

    def _op(self, op: Op, where: str) -> None:
        names = self._variables[op.stream]
        match op:
            case Append(node=node):
                if not isinstance(node, _SAYABLE):
                    raise ArgumentError(f"{where}: nothing can say {shown(node)}")
                _check_node(node)
                if isinstance(node, (Gen, Select)) and node.name is not None:
                    count = 1 if isinstance(node, Select) else node.options.n or self._samples[op.stream]
                    names[node.name] = count if isinstance(count, int) else None
                    if node.reasoning is not None:
                        names[f"{node.name}{SUFFIX}"] = names[node.name]
            case SetVariable(name=name):
                names[name] = None
            case Scope(name=name, begin=begin):
                if not begin and (op.stream, name) not in self._scopes:
                    raise ArgumentError(f"{where}: nothing has begun it")
                (self._scopes.add if begin else self._scopes.discard)((op.stream, name))
                names[name] = 1
            case Fork(children=children, offsets=offsets):
                if not children or (offsets is not None and len(offsets) != len(children)):
                    raise ArgumentError(f"{where}: a fork has one stream or more, and an offset for each or none")
                self._begin(children, names, self._samples[op.stream], where)
                self._forks[children] = op.stream
            case Join(children=children, mode=mode):
                if self._forks.get(children) != op.stream or mode not in (GATHER, CONCATENATE):
                    raise ArgumentError(f"{where}: there is no such fork, or no such way to join it")
                for child in children:
                    names |= dict.fromkeys(self._variables[child].keys() - names.keys())
            case Call(child=child, options=options):
                _check_options(options, where)
                self._begin((child,), {}, options.get("n") or 1, where)

    def _begin(self, streams: tuple[int, ...], names: Mapping[str, int | None], samples: int, where: str) -> None:
        for stream in streams:
            if stream in self._variables:
                raise ArgumentError(f"{where}: s{stream} has begun before")
            self._variables[stream], self._samples[stream] = dict(names), samples

    def _stream(self, stream: int, where: str) -> None:
        if stream not in self._variables:
            raise ArgumentError(f"{where}: there is no stream s{stream} here")

    def _check_placeholders(self, value: Any, where: str) -> None:
        for found in _placeholders(value):
            _check_types(found, where)
            if isinstance(found, Argument) and found.name not in self._graph.parameters:
                raise ArgumentError(f"{where}: the program has no parameter {found.name!r}")
            if isinstance(found, VariableRef):
                self._stream(found.stream, where)
                if found.name not in self._variables[found.stream]:
                    raise ArgumentError(f"{where}: s{found.stream} has no variable {found.name!r} here")
                count = self._variables[found.stream][found.name]
                last = -1 if count == 1 else count
                if found.sample is not None and last is not None and not 0 <= found.sample < last:
                    raise ArgumentError(f"{where}: {found!r} is not there")


def _check_node(node: Any) -> None:
    """The values that make a node's own rules."""
    if isinstance(node, Select) and not isinstance(node.choices, Placeholder):
        select(node.name, node.choices, 0.0, node.method)
    if isinstance(node, Gen):
        arguments.sampling({item.name: getattr(node.options, item.name) for item in fields(SamplingOptions)})


def _check_options(options: Mapping[str, Any], where: str) -> None:
    try:
        Defaults().updated(options)
    except LmnbError as error:
        raise ArgumentError(f"{where}: {error}") from None


def _placeholders(value: Any) -> Iterator[Placeholder]:
    if isinstance(value, Placeholder):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _placeholders(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _placeholders(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _placeholders(getattr(value, part.name))


def _check_types(value: Any, where: str) -> None:
    """That the dataclass `value`, and those in it, have values of their fields' types."""
    cls: Any = type(value)
    hints = _hints(cls)
    for part in fields(value):
        found = getattr(value, part.name)
        open_now = isinstance(value, SamplingOptions) and isinstance(found, Placeholder)
        if part.metadata.get("lives") or open_now:
            continue
        if not _fits(hints[part.name], found):
            raise ArgumentError(f"{where}: {part.name} cannot be {shown(found)}")
        for inner in found if isinstance(found, tuple) else (found,):
            if is_dataclass(inner) and not isinstance(inner, (type, Op)):
                _check_types(inner, where)


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls, localns=_NAMES)


def _fits(kind: Any, value: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or isinstance(kind, str):
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(parts[0], item) for item in value)
    if origin is not None:
        return isinstance(value, origin)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if kind is Backend:
        return hasattr(value, "new_context")
    return isinstance(value, kind)
