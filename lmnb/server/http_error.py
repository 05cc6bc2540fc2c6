"""What goes wrong with an HTTP request, and how it is told: one JSON form for both protocols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmnb.errors import ArgumentError, EngineClosedError, GrammarError, RequestTooLongError, TemplateError

_REFUSED = (ArgumentError, GrammarError, RequestTooLongError, TemplateError)
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


@dataclass
class HttpError(Exception):
    """An answer other than 200. `param` names the field that is wrong."""

    status: int
    message: str
    param: str | None = None

    def __str__(self) -> str:
        return self.message


def as_http_error(error: BaseException) -> HttpError:
    """The answer to an error of ours: what the client sent is wrong (400), or the engine is (500, 503)."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, _REFUSED):
        return HttpError(400, str(error))
    if isinstance(error, EngineClosedError):
        return HttpError(503, str(error))
    return HttpError(500, f"the server failed: {type(error).__name__}: {error}")


def error_body(error: HttpError) -> dict[str, Any]:
    """OpenAI's error object, of which SGLang's is a part."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {
        "error": {"message": error.message, "type": kind, "param": error.param, "code": error.status},
    }
