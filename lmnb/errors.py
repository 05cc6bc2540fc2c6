"""Every error a user of lmnb can meet. Each message says what happened and what to do next.

In a notebook these show as one line: IPython asks an exception for `_render_traceback_`.
Asserts elsewhere guard our own invariants only; bad input raises one of these.
"""

from __future__ import annotations

import pickle


class LmnbError(Exception):
    """Base of all errors that lmnb raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """The lines IPython prints instead of a traceback of our frames."""
        lines = [f"{type(self).__name__}: {self}"]
        cause = self.__cause__
        while cause is not None:
            told = f"{type(cause).__name__}: {cause}"
            if not any(told in line for line in lines):
                lines.append(f"  caused by {told}")
            cause = cause.__cause__
        lines.extend(f"  {note}" for note in getattr(self, "__notes__", ()))
        return lines


class ArgumentError(LmnbError, ValueError):
    """A function, magic or option was given something it cannot use."""


class ModelNotFoundError(LmnbError):
    """A model's files are not where they were looked for, or cannot be fetched."""


class UnsupportedModelError(LmnbError):
    """The model's architecture or file format is one that lmnb does not run."""


class NoBackendError(LmnbError):
    """A program was run before any model was loaded."""


class EngineClosedError(LmnbError):
    """The engine was shut down, or died; the cause, if any, is chained."""


class RequestTooLongError(LmnbError):
    """A prompt (with the tokens asked for) does not fit the model's context or the KV pool."""


class OutOfMemoryError(LmnbError):
    """A model, its KV pool or a step needs more memory, or threads, than is left. What it had taken is given back."""


class CacheError(LmnbError):
    """Something was to be pinned, unpinned or evicted that cannot be; the message says what keeps it."""


class GrammarError(LmnbError, ValueError):
    """A regex or JSON schema is invalid, or asks for something that cannot be enforced."""


class GenerationError(LmnbError):
    """A step of a program failed; the cause is chained."""


class CancelledError(LmnbError):
    """The value was never produced because its run was stopped."""


class RemoteError(LmnbError):
    """A remote backend refused a call, failed, or cannot be reached. The message is the server's own."""


class PicklingError(LmnbError, pickle.PicklingError):
    """Something that lives in one process was to be pickled or copied; the message says what to save instead."""


class MissingPackageError(LmnbError, ImportError):
    """A backend needs a package that is not installed."""


class UnknownVariableError(LmnbError, KeyError):
    """A program's state has no variable of that name."""

    def __str__(self) -> str:  # KeyError would show the message's repr
        return str(self.args[0]) if self.args else ""


class TemplateError(LmnbError, ValueError):
    """A chat template cannot express what was asked (unknown role, roles out of order)."""


class ProgramError(LmnbError):
    """A program was written or called in a way the language does not allow."""
