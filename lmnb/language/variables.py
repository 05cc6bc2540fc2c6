"""What a state's variables and text are made of: values that arrive later, piece by piece, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmnb.errors import CancelledError, GenerationError, LmnbError, UnknownVariableError
from lmnb.language.waiting import Signal
from lmnb.runtime.argument_checks import shown, shown_error
from lmnb.runtime.request import TokenLogprob

if TYPE_CHECKING:
    from lmnb.language.generated import Generated


@dataclass(frozen=True)
class Failure:
    """Why steps of a stream did not happen. `cause` is None for a cancel, and `wanted` if that was asked of the run:
    then its text may end early without an error."""

    message: str
    cause: BaseException | None = None
    wanted: bool = False

    @classmethod
    def of_cancel(cls) -> Failure:
        """The run was stopped."""
        return cls("the run was cancelled; what was generated before is kept in the state's text", wanted=True)

    @classmethod
    def of_body(cls, error: BaseException, *, cancelled: bool) -> Failure:
        """The body raised `error`, which stops what it has started. `cancelled`: its run had been stopped before."""
        if isinstance(error, (CancelledError, KeyboardInterrupt, asyncio.CancelledError)):
            if cancelled:
                return cls.of_cancel()
            return cls(
                f"the program's body was stopped by {type(error).__name__}; what was generated before is kept in the "
                "state's text"
            )
        return cls(f"the program's body raised {type(error).__name__}: {error}", error)

    @property
    def cancelled(self) -> bool:
        """Whether the run was stopped, rather than broken."""
        return self.cause is None

    def error(self, what: str = "") -> LmnbError:
        """A new error to raise, with its cause chained; `what` says what the reader wanted."""
        text = f"{what}: {self.message}" if what else self.message
        if self.cause is None:
            return CancelledError(text)
        error = GenerationError(text)
        error.__cause__ = self.cause
        return error


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of text as it arrived."""

    text: str
    num_tokens: int = 0
    logprobs: Sequence[TokenLogprob] = ()


class Variable:
    """One value of one name. It is set once, by a step or at once; text that is on its way can be read before.

    Written by one thread at a time; read from any.
    """

    __slots__ = (
        "chunks",
        "done",
        "failure",
        "gathered",
        "generated",
        "meta",
        "name",
        "read",
        "scope_thread",
        "signal",
        "value",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.signal = Signal()
        self.chunks: list[Chunk] = []
        self.value: Any = None
        self.meta: Mapping[str, Any] | None = None
        self.failure: Failure | None = None
        self.read: Callable[[str], Any] | None = None  # from a complete text to its typed value
        self.generated: Generated | None = None  # the generation that sets it, from its beginning on
        self.done = False
        self.gathered = False  # made by a join, so that the next join may replace it
        self.scope_thread: int | None = None  # the thread inside the open var_scope that will set this

    @classmethod
    def ready(cls, name: str, value: Any, meta: Mapping[str, Any] | None = None) -> Variable:
        """A variable that has its value."""
        variable = cls(name)
        variable.set(value, meta)
        return variable

    def push(self, chunk: Chunk) -> None:
        """Add text of a value in progress."""
        self.chunks.append(chunk)
        self.signal.notify()

    def set(self, value: Any, meta: Mapping[str, Any] | None = None) -> None:
        """Give the value."""
        self.value = value
        self.meta = meta
        if not self.chunks:
            self.chunks.append(Chunk(value if isinstance(value, str) else str(value)))
        self.done = True
        self.signal.notify()

    def fail(self, failure: Failure) -> None:
        """There will be no value."""
        if not self.done:
            self.failure = failure
            self.done = True
            self.signal.notify()

    def typed(self) -> Any:
        """The value of a finished variable as its constraint's type: GenerationError if it was cut short."""
        if self.meta is None or self.read is None:
            return self.value
        reason = self.meta["finish_reason"]
        kind = reason["type"] if isinstance(reason, Mapping) else reason
        if kind != "stop":
            advice = "raise max_tokens, or read" if kind == "length" else "run it again, or read"
            raise GenerationError(
                f"variable {self.name!r} is incomplete ({kind}), so it has no typed value; {advice} its text: "
                f"{str(self.value)[-60:]!r}"
            )
        if self.meta.get("cut"):
            raise GenerationError(self._cut(reason["matched"]))
        try:
            return [self.read(text) for text in self.value] if isinstance(self.value, list) else self.read(self.value)
        except Exception as error:
            if isinstance(reason, Mapping) and isinstance(reason.get("matched"), str):  # not told
                raise GenerationError(self._cut(reason["matched"])) from error
            raise GenerationError(f"variable {self.name!r} has no typed value: {shown_error(error)}") from error

    def _cut(self, matched: str | int | None) -> str:
        stop = f"stop token {matched}" if isinstance(matched, int) else f"stop string {shown(matched)}"
        return (
            f"variable {self.name!r} is incomplete: cut by the {stop}, so it has no typed value; leave that stop out, "
            f"or read its text: {str(self.value)[-60:]!r}"
        )

    @property
    def available(self) -> bool:
        """Whether there is a value."""
        return self.done and self.failure is None


@dataclass
class ChunkReader:
    """Reads a growing list of chunks from the start: each `take` gives what is new, with its meta data."""

    chunks: list[Chunk]
    _next: int = 0
    _num_tokens: int = 0
    _kept: list[Chunk] = field(default_factory=list)  # tokens whose text has not come yet

    def take(self, *, last: bool) -> tuple[str, list[TokenLogprob], int] | None:
        """(new text, its tokens' log-probabilities, completion tokens so far); None if there is nothing new.

        Tokens without text wait for the text that follows them; with `last` they come even without.
        """
        new = self.chunks[self._next :]
        self._next += len(new)
        self._kept += new
        text = "".join(chunk.text for chunk in self._kept)
        if not text and not (last and any(chunk.num_tokens for chunk in self._kept)):
            return None
        self._num_tokens += sum(chunk.num_tokens for chunk in self._kept)
        logprobs = [item for chunk in self._kept for item in chunk.logprobs]
        self._kept = []
        return text, logprobs, self._num_tokens

    @property
    def pending(self) -> bool:
        """Whether chunks have arrived that were not taken."""
        return self._next < len(self.chunks)


def unknown_variable(name: object, known: Mapping[str, object]) -> UnknownVariableError:
    """The error for a name that nothing sets."""
    names = ", ".join(sorted(known)) or "none yet"
    return UnknownVariableError(f"this state has no variable {name!r}; it has: {names}")
