"""What other threads may put into the engine's inbox."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.handle import RequestHandle
from lmnb.runtime.request import Request
from lmnb.runtime.sequence import Sequence


@dataclass(slots=True)
class Submit:
    """A new request."""

    request: Request
    handle: RequestHandle


@dataclass(slots=True)
class Cancel:
    """Stop a request."""

    request_id: int


@dataclass(slots=True)
class Compiled:
    """A request's grammar is ready, or could not be made."""

    sequence: Sequence
    result: Future[GrammarMatcher]


@dataclass(slots=True)
class MaskMade:
    """A mask is there that a step has gone on without."""


@dataclass(slots=True)
class Call:
    """Run a function between two steps."""

    function: Callable[[], Any]
    future: Future[Any]


@dataclass(slots=True)
class Close:
    """End the thread."""


Message = Submit | Cancel | Compiled | MaskMade | Call | Close
