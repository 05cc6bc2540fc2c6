"""Reading a state's text, or one variable's, while it comes: one core for threads and for coroutines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmnb.language.meta import triples
from lmnb.language.stream import Stream
from lmnb.language.variables import ChunkReader, Failure, Variable, unknown_variable
from lmnb.language.waiting import Signal


class Reader:
    """Follows a text to its end. Wait until `has_news`, then `take`, until that says it is over.

    Without `body_done` the end of the text is where everything that was submitted is done; with it, the program's
    body, which runs elsewhere, must have ended too. A variable that no body declares raises when the body has ended.
    """

    def __init__(
        self,
        stream: Stream,
        variables: dict[str, Variable],
        var_name: str | None,
        body_done: Callable[[], bool] | None,
    ) -> None:
        self._stream = stream
        self._variables = variables
        self._name = var_name
        self._body_done = body_done
        self._variable: Variable | None = None
        self._chunks = ChunkReader(stream.chunks)
        self._find()

    @property
    def signal(self) -> Signal:
        """What tells of news."""
        return self._variable.signal if self._variable is not None else self._stream.signal

    def has_news(self) -> bool:
        """Whether `take` has something to say."""
        if self._name is not None and self._variable is None:
            return self._name in self._variables or self._over()
        return self._chunks.pending or self._over()

    def take(self) -> tuple[tuple[str, dict[str, Any]] | None, bool]:
        """The new piece of text with its meta data, if any; and whether that was the last.

        Raises what kept the text from its end, once all that came before has been taken.
        """
        if self._name is not None and self._variable is None:
            over = self._over()
            self._find()
            if self._variable is None:
                if over:
                    self._raise(self._stream.failure)
                    raise unknown_variable(self._name, self._variables)
                return None, False
        over = self._over()  # looked at first: what comes in between is taken
        new = self._chunks.take(last=over)
        if over and new is None:
            self._raise(self._variable.failure if self._variable is not None else self._stream.failure)
        if new is None:
            return None, over
        text, logprobs, num_tokens = new
        failed = over and (self._variable.failure if self._variable is not None else self._stream.failure) is not None
        return (text, self._meta(logprobs, num_tokens, over)), over and not failed

    def _find(self) -> None:
        if self._name is not None:
            self._variable = self._variables.get(self._name)
            if self._variable is not None:
                self._chunks = ChunkReader(self._variable.chunks)

    def _over(self) -> bool:
        if self._variable is not None:
            return self._variable.done
        return (self._body_done is None or self._body_done()) and self._stream.drained

    def _meta(self, logprobs: list[Any], num_tokens: int, over: bool) -> dict[str, Any]:
        meta = dict(self._variable.meta or {}) if over and self._variable is not None else {}
        meta["completion_tokens"] = num_tokens if num_tokens or not meta else meta.get("completion_tokens", 0)
        meta["output_token_logprobs"] = triples(logprobs, self._stream.backend)
        return meta

    def _raise(self, failure: Failure | None) -> None:
        """A run that was told to stop ends its text early, and quietly; anything else is raised."""
        if failure is None or (failure.wanted and self._variable is None):
            return
        raise failure.error("the text ended early")
