"""Answers that are none: what a server or a proxy sent in the place of one, told in one short line.

A page, an error with status 200 or half a stream must never be taken for a text of the model's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lmnb.backends.remote.secrets import Secret
from lmnb.backends.well_formed import well_formed
from lmnb.errors import LmnbError, RemoteError

_LONGEST_MESSAGE = 2000  # characters of a server's own words
_LONGEST_ANSWER = 200  # of an answer that is none
# What a value of the wrong form makes of code that reads it, lmnb's or an SDK's.
_MISREAD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


class Teller:
    """Makes the errors of one server's answers. `who` names it; its `key` stands in none of them."""

    def __init__(self, who: str, key: Secret) -> None:
        self._who = who
        self._key = key

    def says(self, message: str) -> RemoteError:
        """An error with the server's own words."""
        return RemoteError(f"{self._who} says: {well_formed(self._key.hide(message))[:_LONGEST_MESSAGE]}")

    def sent(self, what: str, answer: Any = None) -> RemoteError:
        """An error about what came: `what`, and the first characters of `answer` (bytes, text or a JSON value)."""
        told = "" if answer is None else f": {self._shown(answer)}"
        return RemoteError(f"{self._who} sent {well_formed(self._key.hide(what))}{told}")

    def not_a_stream(self, body: bytes, kind: str) -> RemoteError:
        """An error about a whole body of a content type that came in the place of a stream."""
        try:
            message = told_error(json.loads(body))
        except ValueError:
            message = None
        if message is not None:
            return self.says(message)
        return self.sent(f"no stream of events, but {kind or 'an answer without a content type'}", body)

    @contextmanager
    def reading(self, answer: Callable[[], Any] | None = None) -> Iterator[None]:
        """Reads an answer (which `answer` gives, for the error): what is not of the expected form is a RemoteError."""
        try:
            yield
        except LmnbError:
            raise
        except json.JSONDecodeError as failed:
            raise self.sent("something that is no JSON", failed.doc) from None
        except UnicodeDecodeError as failed:
            raise self.sent("something that is no UTF-8", failed.object) from None
        except _MISREAD as failed:
            what = f"an answer of an unknown form ({type(failed).__name__}: {failed})"
            raise self.sent(what, None if answer is None else answer() or "null") from None

    def _shown(self, answer: Any) -> str:
        if isinstance(answer, bytes):
            answer = answer.decode("utf-8", "replace")
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)
        text = well_formed(self._key.hide(" ".join(text.split())))  # before it is cut: half a key is still one
        return (text if len(text) <= _LONGEST_ANSWER else text[:_LONGEST_ANSWER] + "...") or "nothing"


def told_error(answer: Any) -> str | None:
    """The message of an answer that is an error object (`{"error": ...}`); None for any other."""
    if not isinstance(answer, dict) or not answer.get("error"):
        return None
    return error_message(answer)


def error_message(answer: dict[str, Any]) -> str:
    """The words in an error object, of whatever form it is."""
    found = answer.get("error", answer.get("detail", answer.get("message", answer)))
    if isinstance(found, dict):
        found = found.get("message", found)
    return str(found)
