"""`Graph`: a program as data. What each of its streams says, asks for, forks and joins, in the order of the program.

It can be printed, drawn, written as JSON and read back, run, and asked for its constant beginning. It is made by
`Program.compile` (see `tracing.py`); how it runs is in `graph_run.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmnb.backends.base import Backend, CancelToken, Owner
from lmnb.errors import ArgumentError
from lmnb.language.default_backend import resolve_backend
from lmnb.language.expressions import Expr, Gen, Image, RoleBegin, RoleEnd, Select, Text
from lmnb.language.placeholders import Argument, Placeholder
from lmnb.language.submission import merge_text

if TYPE_CHECKING:
    from lmnb.language.program import Program
    from lmnb.language.state import ProgramState

REQUIRED = object()  # the default of a parameter that has none


@dataclass(frozen=True)
class Op:
    """Something that the stream numbered `stream` does; `line` is where the program says so."""

    stream: int
    line: int | None


@dataclass(frozen=True)
class Append(Op):
    """Text, an image, a role's mark, a placeholder, a `gen` or a `select`."""

    node: Expr


@dataclass(frozen=True)
class Scope(Op):
    """Begins or ends the collection of text into a variable."""

    name: str
    begin: bool


@dataclass(frozen=True)
class SetVariable(Op):
    """Sets a variable at once."""

    name: str
    value: Any


@dataclass(frozen=True)
class Fork(Op):
    """Starts streams with all that this one has said."""

    children: tuple[int, ...]
    offsets: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Join(Op):
    """Brings the streams of a fork together again."""

    children: tuple[int, ...]
    mode: str
    approximate: bool = False


@dataclass(frozen=True)
class Call(Op):
    """Calls another program, whose stream starts empty; `options` are its sampling options."""

    child: int
    program: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A traced program. `parameters` maps names to defaults (`REQUIRED` for none); stream 0 is the program's own."""

    name: str
    parameters: Mapping[str, Any]
    ops: tuple[Op, ...]
    result: Any = None  # what the program returns; may contain placeholders
    options: Mapping[str, Any] = field(default_factory=dict)  # sampling defaults of the program's own
    backend: Backend | None = field(default=None, compare=False)

    # Looking

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def print_graph(self) -> None:
        """Print it."""
        print(self)  # noqa: T201

    def to_dot(self) -> str:
        """The graph in DOT, graphviz's language."""
        from lmnb.language.graph_dot import to_dot

        return to_dot(self)

    def to_graphviz(self) -> Any:
        """A `graphviz.Source`, which notebooks show. MissingPackageError without the `graphviz` library.

        Its program `dot` is needed to draw; without it a notebook shows what to install, and the DOT text.
        """
        from lmnb.language.graphviz_source import graphviz_source

        return graphviz_source(self.to_dot(), self.name)

    def draw(self) -> Any:
        """`to_graphviz` under SGLang's name for it."""
        return self.to_graphviz()

    @property
    def num_streams(self) -> int:
        """The program's own stream, its forks' and its calls'."""
        return 1 + sum(
            len(op.children) if isinstance(op, Fork) else 1 for op in self.ops if isinstance(op, (Fork, Call))
        )

    # JSON

    def to_json(self) -> str:
        """As JSON text. ArgumentError for what JSON cannot hold: methods of one's own, arbitrary objects."""
        from lmnb.language.graph_json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """What `to_json` has written. ArgumentError for anything else."""
        from lmnb.language.graph_json import from_json

        return from_json(text)

    # Running

    def program(self) -> Program:
        """A program that does what the graph says; it runs, maps and streams like any other."""
        from lmnb.language.graph_run import graph_program

        return graph_program(self)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """See `Program.run`. Streams wait for each other's variables without holding up the program."""
        return self.program().run(*args, **kwargs)

    def run_batch(self, batch_kwargs: Any, **kwargs: Any) -> Any:
        """See `Program.run_batch`."""
        return self.program().run_batch(batch_kwargs, **kwargs)

    def map(self, rows: Any, **kwargs: Any) -> Any:
        """See `Program.map`."""
        return self.program().map(rows, **kwargs)

    # The constant beginning

    def prefix(self, **known: Any) -> list[Expr]:
        """Texts and role marks that every run begins with, given the arguments that are known."""
        unknown = [name for name in known if name not in self.parameters]
        if unknown:
            raise ArgumentError(f"{self.name} has no parameter {unknown[0]!r}; it has: {', '.join(self.parameters)}")
        return merge_text(list(self._prefix(known)))

    def cache(self, backend: Backend | None = None, **known: Any) -> str:
        """Have the backend compute the constant beginning, so that later runs start from it; returns its text."""
        from lmnb.language.precache import commit

        chosen = resolve_backend(self.backend if backend is None else backend)
        return commit(self.prefix(**known), chosen, Owner(run="cache", program=self.name), CancelToken())

    def _prefix(self, known: Mapping[str, Any]) -> Iterator[Expr]:
        for op in self.ops:
            if op.stream != 0 or not isinstance(op, Append):
                continue
            node = op.node
            if isinstance(node, Argument) and node.name in known:
                value = known[node.name]
                node = Text(str(value)) if node.formatted or isinstance(value, str) else node
            if not isinstance(node, (Text, RoleBegin, RoleEnd)):
                return
            yield node

    def _lines(self) -> Iterator[str]:
        shown = [name if value is REQUIRED else f"{name}={value!r}" for name, value in self.parameters.items()]
        yield f"{self.name}({', '.join(shown)})"
        depth = {0: 1}
        for op in self.ops:
            at = "  " * depth[op.stream]
            if isinstance(op, (Fork, Call)):
                for child in op.children if isinstance(op, Fork) else (op.child,):
                    depth[child] = depth[op.stream] + 1
            line = f"  # line {op.line}" if op.line is not None else ""
            yield f"{at}s{op.stream}: {describe(op)}{line}"
        if self.result is not None:
            yield f"  return {self.result!r}"


def describe(op: Op) -> str:
    """One op in a few words."""
    match op:
        case Append(node=node):
            return describe_node(node)
        case Scope(name=name, begin=begin):
            return f"{'begin' if begin else 'end'} scope {name!r}"
        case SetVariable(name=name, value=value):
            return f"set {name!r} = {value!r}"
        case Fork(children=children):
            return "fork " + ", ".join(f"s{child}" for child in children)
        case Join(children=children, mode=mode):
            return "join " + ", ".join(f"s{child}" for child in children) + f" ({mode})"
        case Call(child=child, program=program):
            return f"call {program} as s{child}"
    raise AssertionError(op)


def describe_node(node: Expr) -> str:
    """One node in a few words."""
    match node:
        case Text(text=text):
            return f"text {text!r}"
        case RoleBegin(role=role):
            return f"begin {role}"
        case RoleEnd(role=role):
            return f"end {role}"
        case Image(picture=picture, num_frames=None):
            return f"image {picture!r}"
        case Image(picture=picture, num_frames=num_frames):
            return f"video {picture!r} in {num_frames!r} frames"
        case Gen(name=name, constraint=constraint):
            return f"gen {name!r}" + (f" as {constraint.kind}" if constraint else "")
        case Select(name=name, choices=choices):
            return f"select {name!r} of " + (repr(choices) if isinstance(choices, Placeholder) else repr(list(choices)))
    assert isinstance(node, Placeholder), node
    return f"say {node!r}"
