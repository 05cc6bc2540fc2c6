"""What a program appends to a state: immutable nodes, and the algebra that strings them together.

A node says what shall happen, not how; it knows nothing of states, runs and backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from lmnb.backends.well_formed import well_formed
from lmnb.errors import ProgramError
from lmnb.language.reasoning import ReasoningFormat
from lmnb.runtime.argument_checks import shown
from lmnb.runtime.request import Constraint

if TYPE_CHECKING:
    from lmnb.language.choices import ChoicesSamplingMethod

_WRITTEN_NODES = 3


class Expr:
    """A piece of a program. `str + expr`, `expr + str` and `expr + expr` make longer ones."""

    __slots__ = ()

    def __add__(self, other: object) -> Expr:
        return ExprList((*flatten(self), *flatten(other)))

    def __radd__(self, other: object) -> Expr:
        return ExprList((*flatten(other), *flatten(self)))

    def __format__(self, spec: str) -> str:
        # A repr instead would end up in a prompt: str(), "%s" and f-strings all ask for text to go on with.
        raise ProgramError(
            f"{written(self)} is not text yet, so no str(), % or f-string can hold it; write "
            f"'text' + {written(self)} + 'text' (repr shows the expression itself)"
        )

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True, slots=True)
class Text(Expr):
    """Constant text. Half a character (a lone surrogate) becomes U+FFFD: no tokenizer takes it."""

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", well_formed(self.text))


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """Opens a role."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    """Closes the role of that name."""

    role: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SamplingOptions:
    """Sampling as one `gen` gives it: None leaves the program's default."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    jump_forward: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None

    def __repr__(self) -> str:
        given = ((item.name, getattr(self, item.name)) for item in fields(self))
        return f"SamplingOptions({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"


@dataclass(frozen=True, slots=True)
class Gen(Expr):
    """Generated text, kept in the variable `name`. `extra_stop` comes after the stop strings (number types).

    With `reasoning` the variable has the answer only, and the reasoning has a variable of its own. `read` turns the
    text into a value; it lives in Python only, so that a graph written as JSON is without it.
    """

    name: str | None
    options: SamplingOptions
    constraint: Constraint | None = None
    extra_stop: tuple[str, ...] = ()
    reasoning: ReasoningFormat | None = None
    read: Callable[[str], Any] | None = field(default=None, compare=False, metadata={"lives": True})


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """One of `choices`, kept in the variable `name`."""

    name: str | None
    choices: Any  # a tuple of texts; while a program is traced, placeholders may stand in it, or for it
    method: ChoicesSamplingMethod
    reasoning: ReasoningFormat | None = None


@dataclass(frozen=True, slots=True)
class Image(Expr):
    """An image, or a video's frames. While a program is traced, `picture` may be a placeholder for what `image` or
    `video` takes (`num_frames` is set for a video)."""

    picture: Any
    num_frames: Any = None


@dataclass(frozen=True, slots=True)
class Submitted(Expr):
    """What `s.user(...)` returns: it is in the state `owner` already, so that `s += s.user(...)` adds it once."""

    owner: object
    nodes: tuple[Expr, ...]

    def __repr__(self) -> str:
        return f"Submitted({ExprList(self.nodes)!r})"


@dataclass(frozen=True, slots=True)
class ExprList(Expr):
    """Nodes in a row; never nested."""

    nodes: tuple[Expr, ...]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.nodes)

    def __repr__(self) -> str:
        return "ExprList([" + ", ".join(repr(node) for node in self.nodes) + "])"


def flatten(value: Any) -> tuple[Expr, ...]:
    """The nodes of text or of an expression; ProgramError for anything else."""
    if isinstance(value, str):
        return (Text(value),)
    if isinstance(value, ExprList):
        return value.nodes
    if isinstance(value, Expr):
        return (value,)
    hint = "" if value is not None else " (does a function here forget to return?)"
    raise ProgramError(
        f"only text and expressions such as gen(...) can be added to a program, not {_shown(value)}{hint}; "
        "use str(...) for other values"
    )


def written(node: Expr) -> str:
    """An expression in a few words, as a program would write it."""
    match node:
        case Text(text=text):
            return shown(text)
        case Gen(name=name):
            return "gen()" if name is None else f"gen({name!r})"
        case Select(name=name):
            return "select(...)" if name is None else f"select({name!r}, ...)"
        case RoleBegin(role=role):
            return f"{role}_begin()"
        case RoleEnd(role=role):
            return f"{role}_end()"
        case Image():
            return "image(...)"
        case ExprList(nodes=nodes) | Submitted(nodes=nodes):
            more = ["..."] if len(nodes) > _WRITTEN_NODES else []
            return f"({' + '.join([*map(written, nodes[:_WRITTEN_NODES]), *more])})"
    return repr(node)


def _shown(value: object) -> str:
    if value is None:
        return "None"
    text = repr(value) if isinstance(value, (int, float, bool)) else ""
    return f"{text} ({type(value).__name__})" if text else f"a {type(value).__name__}"
