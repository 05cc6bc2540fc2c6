"""Stand-ins for values that a program will have when it runs: what a body sees while it is traced.

They can be said (`s += x`, `"text" + x`, f-strings) and handed on; whoever looks at the value itself gets an error
with the line, because a graph cannot follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from lmnb.errors import ProgramError
from lmnb.language.expressions import Expr
from lmnb.language.source import caller_line


class Placeholder(Expr):
    """A value that is not known yet."""

    __slots__ = ()

    def _refuse(self, what: str) -> NoReturn:
        hint = f"; give it a value: compile({self.name}=...)" if isinstance(self, Argument) else ""
        raise ProgramError(
            f"line {caller_line()}: the program {what} {self!r}, whose value is not known before it runs, so it cannot "
            f"become a graph{hint}"
        )

    def __bool__(self) -> bool:
        self._refuse("decides by")

    def __eq__(self, other: object) -> bool:
        self._refuse("compares")

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: object) -> bool:
        self._refuse("compares")

    __le__ = __gt__ = __ge__ = __lt__

    def __str__(self) -> str:
        self._refuse("makes text of")

    def __iter__(self) -> NoReturn:
        self._refuse("goes through")

    def __len__(self) -> int:
        self._refuse("counts")

    def __contains__(self, item: object) -> bool:
        self._refuse("searches")

    def __getitem__(self, item: object) -> NoReturn:
        self._refuse("takes a part of")

    def __index__(self) -> int:
        self._refuse("counts by")

    __int__ = __index__

    def __float__(self) -> float:
        self._refuse("computes with")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        self._refuse("calls")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse(f"uses .{name} of")


@dataclass(frozen=True, eq=False, repr=False)
class Argument(Placeholder):
    """An argument of the program. `formatted`: as an f-string writes it, so that it need not be text."""

    name: str
    formatted: bool = False

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, repr=False)
class VariableRef(Placeholder):
    """The variable `name` of a stream, or one of its samples."""

    stream: int
    name: str
    sample: int | None = None
    formatted: bool = False

    def __repr__(self) -> str:
        return f"s{self.stream}[{self.name!r}]" + ("" if self.sample is None else f"[{self.sample}]")
